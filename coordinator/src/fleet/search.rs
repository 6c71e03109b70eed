//! Finds tools by words, ranked by BM25 over their names, titles, descriptions, categories, tags and arguments. With
//! thousands of tools a model searches for the few that it needs.

use bm25::{Embedder, EmbedderBuilder, Scorer, Tokenizer};
use run::Manifest;

/// Bytes of a description that are searched: the beginning says what a tool does.
const DESCRIPTION_BYTES_MAX: usize = 2048;

/// The words of the tools of a catalog.
pub(crate) struct Search {
    embedder: Embedder<u32, Words>,
    scorer: Scorer<usize, u32>,
}

impl std::fmt::Debug for Search {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Search").finish_non_exhaustive()
    }
}

impl Search {
    /// The tools are known by their places in the given order.
    pub(crate) fn new<'a>(tools: impl Iterator<Item = &'a Manifest>) -> Self {
        let texts: Vec<String> = tools.map(text).collect();
        let corpus: Vec<&str> = texts.iter().map(String::as_str).collect();
        let embedder = EmbedderBuilder::<u32, Words>::with_tokenizer_and_fit_to_corpus(Words, &corpus).build();
        let mut scorer = Scorer::new();
        for (place, text) in texts.iter().enumerate() {
            scorer.upsert(&place, embedder.embed(text));
        }
        Self { embedder, scorer }
    }

    /// The places of tools that have a word of the query, the best first; equally good ones in their order.
    pub(crate) fn find(&self, query: &str) -> Vec<usize> {
        let mut found = self.scorer.matches(&self.embedder.embed(query));
        found.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.id.cmp(&other.id)));
        found.into_iter().filter(|found| found.score > 0.0).map(|found| found.id).collect()
    }
}

/// The text of a tool. Its name counts three times, because models search for names.
fn text(manifest: &Manifest) -> String {
    let name = manifest.name.as_str();
    let mut end = manifest.description.len().min(DESCRIPTION_BYTES_MAX);
    while !manifest.description.is_char_boundary(end) {
        end -= 1;
    }
    let schema: Option<serde_json::Value> = serde_json::from_str(&manifest.input_schema).ok();
    let properties = schema.as_ref().and_then(|schema| schema["properties"].as_object());
    let arguments: Vec<&str> = properties.into_iter().flat_map(|all| all.keys().map(String::as_str)).collect();
    let (tags, arguments) = (manifest.tags.join(" "), arguments.join(" "));
    let (title, category, description) = (&manifest.title, &manifest.category, &manifest.description[..end]);
    format!("{name} {name} {name} {title} {category} {tags} {description} {arguments}")
}

/// Splits a text into words: runs of letters and digits in lower case, the parts of `camelCase`, and single characters
/// of scripts that have no spaces. A plural counts as its singular.
struct Words;

impl Tokenizer for Words {
    fn tokenize(&self, text: &str) -> Vec<String> {
        let (mut words, mut word) = (Vec::new(), String::new());
        let mut before = ' ';
        for c in text.chars() {
            let is_wide = ('\u{2e80}'..='\u{9fff}').contains(&c) || ('\u{ac00}'..='\u{d7af}').contains(&c);
            let begins = c.is_uppercase() && (before.is_lowercase() || before.is_numeric());
            if is_wide || begins || !c.is_alphanumeric() {
                words.extend(finished(&mut word));
            }
            if is_wide {
                words.push(c.to_string());
            } else if c.is_alphanumeric() {
                word.extend(c.to_lowercase());
            }
            before = c;
        }
        words.extend(finished(&mut word));
        words
    }
}

fn finished(word: &mut String) -> Option<String> {
    let word = std::mem::take(word);
    if word.is_empty() {
        return None;
    }
    let is_sibilant = |stem: &str| ["ch", "sh", "ss", "x", "z"].iter().any(|end| stem.ends_with(end));
    if let Some(stem) = word.strip_suffix("ies").filter(|stem| stem.len() > 2) {
        return Some(format!("{stem}y"));
    }
    if let Some(stem) = word.strip_suffix("es").filter(|stem| is_sibilant(stem)) {
        return Some(stem.to_owned());
    }
    let singular = word.strip_suffix('s').filter(|stem| stem.len() > 2 && !stem.ends_with(['s', 'u', 'i']));
    Some(singular.map_or(word.clone(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use proto::convert::manifest::manifest_in;
    use proto::v1;

    use super::*;

    fn tool(name: &str, description: &str, tags: &[&str]) -> Manifest {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let (name, description) = (name.to_owned(), description.to_owned());
        let input_schema = r#"{"type":"object","properties":{"path":{}}}"#.to_owned();
        manifest_in(v1::Tool { name, description, tags, input_schema, ..v1::Tool::default() }).unwrap().manifest
    }

    fn found(query: &str) -> Vec<&'static str> {
        const NAMES: [&str; 5] = ["read_file", "getWeatherForecast", "send_email", "list_branches", "translate"];
        let tools = [
            tool(NAMES[0], "Reads the content of a file.", &["disk"]),
            tool(NAMES[1], "Tells how the sky will be in a city.", &[]),
            tool(NAMES[2], "Sends a message to a person, with a file attached.", &["mail"]),
            tool(NAMES[3], "Lists the branches of a repository.", &["git"]),
            tool(NAMES[4], "把文本翻译成另一种语言", &[]),
        ];
        Search::new(tools.iter()).find(query).into_iter().map(|place| NAMES[place]).collect()
    }

    #[test]
    fn a_tool_is_found_by_its_name_before_one_that_mentions_the_word() {
        assert_eq!(found("file"), ["read_file", "send_email"]);
    }

    #[test]
    fn parts_of_names_tags_arguments_and_plurals_are_found() {
        assert_eq!(found("weather"), ["getWeatherForecast"]);
        assert_eq!(found("mail"), ["send_email"]);
        assert_eq!(found("branch"), ["list_branches"]);
        assert_eq!(found("repositories"), ["list_branches"]);
        assert_eq!(found("path").len(), 5);
        assert_eq!(found("翻译"), ["translate"]);
    }

    #[test]
    fn words_that_no_tool_has_find_nothing() {
        assert_eq!(found("quantum"), Vec::<&str>::new());
        assert_eq!(found("  "), Vec::<&str>::new());
    }
}
