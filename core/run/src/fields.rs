//! A JSON object of which the core looks at the keys alone: a call's context, and the state that it gives back.

use std::collections::BTreeMap;
use std::fmt;

/// Values are JSON as text, so that numbers keep their digits. Whoever fills one has read them as such.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Fields(BTreeMap<String, String>);

impl Fields {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A value, as JSON.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// In the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, json)| (key.as_str(), json.as_str()))
    }

    pub fn set(&mut self, key: impl Into<String>, json: impl Into<String>) {
        self.0.insert(key.into(), json.into());
    }

    /// Puts the keys of another one over its own; a value takes the place of the earlier one as a whole.
    pub fn overlay(&mut self, over: &Self) {
        self.0.extend(over.0.iter().map(|(key, json)| (key.clone(), json.clone())));
    }

    /// Leaves these keys alone.
    pub fn keep(&mut self, keys: &[String]) {
        self.0.retain(|key, _| keys.contains(key));
    }

    /// Bytes of keys and values together.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.iter().map(|(key, json)| key.len() + json.len()).sum()
    }
}

impl FromIterator<(String, String)> for Fields {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(fields: I) -> Self {
        Self(fields.into_iter().collect())
    }
}

/// Values are nobody's business who reads a log.
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
