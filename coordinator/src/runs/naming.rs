//! Names under which tools are exported for models, and the tools' own.

use std::collections::HashMap;
use std::sync::Arc;

use formats::tools::{self, Format};
use run::ToolName;

use super::Runs;
use crate::admission::accept::Offer;
use crate::admission::custom::CustomTools;

impl Runs {
    /// The tool's own name, for a name that a model was given, or that is the tool's own. `None` if it is no name.
    pub(crate) fn own_name(&self, name: &str) -> Option<ToolName> {
        let name: ToolName = name.parse().ok()?;
        let registry = Arc::clone(&self.registry.borrow());
        let (custom, tenant) = (CustomTools::new(), self.caller.tenant());
        let all = Offer { custom: &custom, attached: &[], attached_only: false, registry: &registry, tenant };
        Some(all.exported_as(&name, self.form).unwrap_or(name))
    }

    /// The names under which some tools are exported in a form.
    pub(crate) fn exported<'a>(&self, tools: impl Iterator<Item = &'a str>, form: Format) -> Vec<String> {
        let registry = Arc::clone(&self.registry.borrow());
        let mut all = registry.catalog_of(self.caller.tenant()).listed();
        let mut at: HashMap<&str, usize> = all.iter().copied().zip(0..).collect();
        let mut places = Vec::new();
        for tool in tools {
            places.push(*at.entry(tool).or_insert_with(|| {
                all.push(tool);
                all.len() - 1
            }));
        }
        let names = tools::names(&all, form);
        places.into_iter().map(|place| names[place].clone()).collect()
    }
}
