//! A JSON object of which the core reads only the keys: a call's context, and the extra state that it returns.

use serde::{Deserialize, Serialize};

use std::collections::BTreeMap;
use std::fmt;

/// Values are JSON as text, so that numbers keep their digits. The caller has checked that they are JSON.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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

    /// Inserts the keys of another object; a value replaces the earlier one as a whole.
    pub fn overlay(&mut self, over: &Self) {
        self.0.extend(over.0.iter().map(|(key, json)| (key.clone(), json.clone())));
    }

    /// Keeps only these keys.
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

/// Values are not shown, because they must not get into logs.
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
