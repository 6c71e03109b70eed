//! Finds files by name.

use schemars::JsonSchema;
use serde::Deserialize;

use super::lines::{counted, streamed};
use super::root::Root;
use super::scope;
use super::walk::{CUT, Files, Filter};
use sandbox::User;
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Default of the paths that are listed: about as many as a model can use.
const LIMIT: u32 = 1_000;
/// Most paths that can be requested: some hundred kilobytes, more than any model reads.
const LIMIT_MAX: u32 = 10_000;

#[derive(Debug)]
pub struct Glob {
    root: Root,
    user: Option<User>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Paths {
    /// As in gitignore: `*.rs` at any depth; `src/*.rs` or `src/**/*.rs` relative to `path`; `{a,b}` for either
    pattern: String,
    /// The folder to look in, relative to the root; all of it unless given
    path: Option<String>,
    /// How many paths to list at most
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    limit: u32,
}

fn limit() -> u32 {
    LIMIT
}

impl Glob {
    #[must_use]
    pub fn new(root: Root, user: Option<User>) -> Self {
        Self { root, user }
    }
}

impl Tool for Glob {
    const NAME: &'static str = "glob";
    type Input = Paths;

    fn about(&self) -> About {
        let text = "Lists the files whose path matches a glob, one path per line, sorted, relative to the root folder. \
                    Hidden files and what gitignore files exclude are left out.";
        let about = About::new(text).read_only().uses_machine().streaming().idle_timeout(None);
        about.category("filesystem").tag("search").side_effect_scope(scope::NONE)
    }

    async fn call(&self, context: &Context, input: Paths) -> Result<Output, ToolError> {
        let folder = self.root.folder(input.path.as_deref()).map_err(|error| error.at("/path"))?;
        let filter = Filter::new(&input.pattern, &folder, "/pattern")?;
        let (root, user, limit) = (self.root.clone(), self.user, input.limit as usize);
        streamed(context, move |lines| {
            let mut files = Files::below(root.path(), &folder, user, lines);
            let mut found = 0;
            let mut cut = false;
            for file in files.by_ref() {
                if !filter.wants(&file) {
                    continue;
                }
                if found == limit {
                    cut = true;
                    break;
                }
                found += 1;
                lines.say(root.relative(&file))?;
            }
            let text = if found == 0 { "No file matches".to_owned() } else { counted(found, "file") };
            Ok(text + if cut { CUT } else { "" } + &files.passed_over())
        })
        .await
    }
}
