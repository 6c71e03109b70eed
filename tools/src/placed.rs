//! Puts each call of a tool into the folder of its call, run or tenant, instead of the worker's root.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::root::Root;
use sandbox::{Sandbox, Sharing, Workspaces};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

type Make<T> = Box<dyn Fn(Root, Sandbox) -> T + Send + Sync>;

/// What a tool does to the files of its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// It changes nothing, so its calls go on in a folder that holds too much.
    Read,
    Write,
}

/// A tool that is made for each folder, as if the folder were the root.
pub(super) struct Placed<T> {
    /// For its description.
    at_root: T,
    make: Make<T>,
    sandbox: Sandbox,
    workspaces: Workspaces,
    access: Access,
    /// Those of folders that calls share: they keep what belongs together, as locks and servers.
    made: Mutex<HashMap<PathBuf, Arc<T>>>,
}

impl<T> std::fmt::Debug for Placed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a tool in {:?}", self.workspaces)
    }
}

impl<T> Placed<T> {
    /// `make` makes the tool of a folder, whose programs the sandbox keeps in it.
    pub(super) fn new((root, sandbox): (Root, Sandbox), workspaces: Workspaces, access: Access, make: Make<T>) -> Self {
        let at_root = make(root, sandbox.clone());
        Self { at_root, make, sandbox, workspaces, access, made: Mutex::default() }
    }

    fn at(&self, folder: &Path) -> Result<Arc<T>, ToolError> {
        let make = || Ok::<_, ToolError>(Arc::new((self.make)(Root::new(folder)?, self.sandbox.within(folder))));
        if self.workspaces.sharing() == Sharing::Call {
            return make();
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tool) = made.get(folder) {
            return Ok(Arc::clone(tool));
        }
        // Those of runs go with their folders.
        made.retain(|folder, _| folder.is_dir());
        let tool = make()?;
        made.insert(folder.to_owned(), Arc::clone(&tool));
        Ok(tool)
    }
}

impl<T: Tool> Tool for Placed<T> {
    const NAME: &'static str = T::NAME;
    type Input = T::Input;

    fn about(&self) -> About {
        self.at_root.about()
    }

    async fn call(&self, context: &Context, input: T::Input) -> Result<Output, ToolError> {
        let workspace = self.workspaces.open(context)?;
        // Ends before the folder goes.
        let tool = self.at(workspace.folder())?;
        match self.access {
            Access::Read => tool.call(context, input).await,
            Access::Write => workspace.bounded(tool.call(context, input)).await,
        }
    }
}
