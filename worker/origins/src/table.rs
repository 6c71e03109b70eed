//! Adds the tools of a file to a table. A tool that cannot be hosted does not hinder the others.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use toolyard_tool::{About, AnyTool, Context, Output, Table, ToolError};

use crate::source::{InvalidFile, Skipped};

/// A table that is being filled.
#[derive(Debug)]
pub(crate) struct Hosting {
    table: Option<Table>,
    names: BTreeSet<String>,
    skipped: Vec<Skipped>,
    hosted: usize,
}

/// Stands for a tool while its manifest is checked.
struct Nothing;

impl AnyTool for Nothing {
    async fn call(&self, _: &Context, _: Value) -> Result<Output, ToolError> {
        Ok(().into())
    }
}

impl Hosting {
    pub(crate) fn beside(table: Table) -> Self {
        let names = table.names().map(|(name, _)| name.to_string()).collect();
        Self { table: Some(table), names, skipped: Vec::new(), hosted: 0 }
    }

    /// Hosts a tool, or notes why it cannot be.
    pub(crate) fn add(&mut self, place: String, name: &str, schema: String, about: About, tool: impl AnyTool) {
        if self.names.contains(name) {
            return self.skip(place, format!("another tool of this worker has the name {name}"));
        }
        // A table that refuses a tool is gone, so the tool is checked in another one.
        if let Err(error) = Table::new().host_any(name, schema.clone(), about.clone(), Nothing) {
            return self.skip(place, error.to_string());
        }
        let Some(table) = self.table.take() else { return };
        match table.host_any(name, schema, about, tool) {
            Ok(table) => self.table = Some(table),
            // It was checked.
            Err(error) => return self.skip(place, error.to_string()),
        }
        self.names.insert(name.to_owned());
        self.hosted += 1;
    }

    /// Notes a tool that is not hosted.
    pub(crate) fn skip(&mut self, place: String, reason: String) {
        tracing::error!(place, reason, "a tool of a file is not hosted");
        self.skipped.push(Skipped { place, reason });
    }

    pub(crate) fn finish(self, path: &Path) -> Result<(Table, Vec<Skipped>), InvalidFile> {
        match self.table {
            Some(table) if self.hosted > 0 => Ok((table, self.skipped)),
            _ => Err(InvalidFile::Nothing { path: path.to_owned() }),
        }
    }
}
