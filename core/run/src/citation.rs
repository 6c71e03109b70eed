//! Citations: the sources of a text, beside it. A model reads the text; clients show the sources.

use serde::{Deserialize, Serialize};

/// A text with the sources that it cites.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CitedText {
    pub text: String,
    /// In the order of their places.
    pub citations: Vec<Citation>,
}

/// A source that a text cites.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Citation {
    pub source: CitationSource,
    /// The title of a page, or the name of a file; may be empty.
    pub title: String,
    /// The first character of the text for which it is the source.
    pub start: u32,
    /// The character after the last one. If it is not behind `start`, the source is that of the whole text.
    pub end: u32,
}

/// Where the cited content is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CitationSource {
    Url(String),
    /// The id of a file, in whichever store its caller knows.
    File(String),
}

impl CitedText {
    /// Bytes in the log.
    #[must_use]
    pub fn size(&self) -> usize {
        self.text.len() + self.citations.iter().map(Citation::size).sum::<usize>()
    }

    /// Bytes of the longest title or source.
    #[must_use]
    pub fn label_size(&self) -> usize {
        self.citations
            .iter()
            .map(|citation| citation.title.len().max(citation.source.as_str().len()))
            .max()
            .unwrap_or(0)
    }
}

impl Citation {
    /// The source of a whole text: a page.
    #[must_use]
    pub fn url(url: impl Into<String>, title: impl Into<String>) -> Self {
        Self { source: CitationSource::Url(url.into()), title: title.into(), start: 0, end: 0 }
    }

    /// The source of a whole text: a file.
    #[must_use]
    pub fn file(id: impl Into<String>, name: impl Into<String>) -> Self {
        Self { source: CitationSource::File(id.into()), title: name.into(), start: 0, end: 0 }
    }

    /// The source of these characters of the text only.
    #[must_use]
    pub fn at(self, characters: std::ops::Range<u32>) -> Self {
        Self { start: characters.start, end: characters.end, ..self }
    }

    fn size(&self) -> usize {
        const REST: usize = 16;
        self.title.len() + self.source.as_str().len() + REST
    }
}

impl CitationSource {
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Url(source) | Self::File(source) => source,
        }
    }
}
