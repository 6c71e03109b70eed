//! Searches tasks, the agenda and the forum by words, the best first.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolyard_tool::{About, Context, Output, Tool, ToolError};

use crate::shelf::SCANNED_MAX;
use crate::{agenda, forum, task};

const QUERY_BYTES_MAX: usize = 1000;
/// Words of a query that count.
const TERMS_MAX: usize = 16;
/// Characters of an excerpt.
const EXCERPT_CHARS: usize = 200;
/// The weights of BM25 that are commonly used.
const SATURATION: f64 = 1.2;
const LENGTH_WEIGHT: f64 = 0.75;
/// A word of a title counts as often.
const TITLE_WEIGHT: f64 = 3.0;

/// Searches the records of its pool.
#[derive(Debug, Clone, Copy)]
pub struct RecordSearch;

/// What to look for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchInput {
    /// Words to look for
    query: String,
    /// Where to look; everywhere if not given
    kinds: Option<Vec<SearchKind>>,
    /// At most this many results, 1 to 50; 10 if not given
    #[schemars(range(min = 1, max = 50))]
    limit: Option<u32>,
}

/// A kind of things to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SearchKind {
    Task,
    Agenda,
    Forum,
}

impl SearchKind {
    const ALL: [Self; 3] = [Self::Task, Self::Agenda, Self::Forum];

    fn prefixes(self) -> &'static [&'static str] {
        match self {
            Self::Task => &[task::PREFIX],
            Self::Agenda => &[agenda::PREFIX],
            Self::Forum => &[forum::TOPICS, forum::POSTS],
        }
    }
}

/// A text that is searched.
struct Document {
    kind: SearchKind,
    id: String,
    title: String,
    body: String,
    /// How often it has each word of the query, those of its title weighted.
    counts: Vec<f64>,
    words: f64,
}

#[derive(Debug, Serialize)]
struct Hit {
    kind: SearchKind,
    id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    title: String,
    excerpt: String,
    score: f64,
}

impl Tool for RecordSearch {
    const NAME: &'static str = "search";
    type Input = SearchInput;

    fn about(&self) -> About {
        About::new("Searches tasks, agenda entries and forum posts by words, and gives the best matches first.")
            .read_only()
            .category("collaboration")
    }

    async fn call(&self, context: &Context, input: SearchInput) -> Result<Output, ToolError> {
        if input.query.len() > QUERY_BYTES_MAX {
            let size = input.query.len();
            return Err(ToolError::bad_input("/query", format!("it has {size} bytes, at most {QUERY_BYTES_MAX}")));
        }
        let mut terms: Vec<String> = words(&input.query).collect();
        terms.sort();
        terms.dedup();
        terms.truncate(TERMS_MAX);
        if terms.is_empty() {
            return Err(ToolError::bad_input("/query", "it has no word"));
        }
        let kinds = input.kinds.unwrap_or_else(|| SearchKind::ALL.to_vec());
        let (documents, is_complete) = read(context, &kinds, &terms).await?;
        let limit = input.limit.map_or(10, |limit| usize::try_from(limit).unwrap_or(10).clamp(1, 50));
        let searched = documents.len();
        let hits = rank(documents, terms.len(), limit);
        Output::json(&serde_json::json!({ "results": hits, "searched": searched, "complete": is_complete }))
    }
}

/// The documents of some kinds, and whether they are all.
async fn read(context: &Context, kinds: &[SearchKind], terms: &[String]) -> Result<(Vec<Document>, bool), ToolError> {
    let mut documents = Vec::new();
    for kind in SearchKind::ALL.into_iter().filter(|kind| kinds.contains(kind)) {
        for prefix in kind.prefixes() {
            let mut last = String::new();
            loop {
                let page = context.records().list(prefix, &last, 100).await?;
                for record in page.records {
                    record.key.as_str().clone_into(&mut last);
                    let id = last.strip_prefix(prefix).unwrap_or(&last);
                    documents.extend(Document::of(kind, id, &record.value, terms));
                }
                if !page.more {
                    break;
                }
                if documents.len() >= SCANNED_MAX {
                    return Ok((documents, false));
                }
            }
        }
    }
    Ok((documents, true))
}

impl Document {
    fn of(kind: SearchKind, id: &str, value: &[u8], terms: &[String]) -> Option<Self> {
        let value: Value = serde_json::from_slice(value).ok()?;
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
        let title = text("title").to_owned();
        let body = format!("{} {} {}", text("notes"), text("text"), text("assignee"));
        let mut counted: HashMap<String, f64> = HashMap::new();
        let mut length = 0.0;
        for (part, weight) in [(&title, TITLE_WEIGHT), (&body, 1.0)] {
            for word in words(part) {
                *counted.entry(word).or_default() += weight;
                length += 1.0;
            }
        }
        let counts = terms.iter().map(|term| counted.get(term).copied().unwrap_or_default()).collect();
        Some(Self { kind, id: id.to_owned(), title, body, counts, words: length })
    }
}

/// The best documents, by BM25.
#[allow(clippy::cast_precision_loss, reason = "there are some thousand documents at most")]
fn rank(documents: Vec<Document>, terms: usize, limit: usize) -> Vec<Hit> {
    let total = documents.len() as f64;
    let mean = (documents.iter().map(|document| document.words).sum::<f64>() / total.max(1.0)).max(1.0);
    let rarity = |term: usize| {
        let with = documents.iter().filter(|it| it.counts.get(term).is_some_and(|count| *count > 0.0)).count() as f64;
        (1.0 + (total - with + 0.5) / (with + 0.5)).ln()
    };
    let rarities: Vec<f64> = (0..terms).map(rarity).collect();
    let score = |document: &Document| -> f64 {
        let length = SATURATION * (1.0 - LENGTH_WEIGHT + LENGTH_WEIGHT * document.words / mean);
        let parts = document.counts.iter().zip(&rarities);
        parts.map(|(count, rarity)| rarity * count * (SATURATION + 1.0) / (count + length)).sum()
    };
    let mut scored: Vec<(f64, Document)> = documents
        .iter()
        .map(score)
        .collect::<Vec<_>>()
        .into_iter()
        .zip(documents)
        .filter(|(score, _)| *score > 0.0)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.id.cmp(&b.1.id)));
    let hit = |(score, document): (f64, Document)| Hit {
        kind: document.kind,
        id: document.id,
        title: document.title,
        excerpt: document.body.trim().chars().take(EXCERPT_CHARS).collect(),
        score: (score * 1000.0).round() / 1000.0,
    };
    scored.into_iter().take(limit).map(hit).collect()
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}
