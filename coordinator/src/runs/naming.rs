//! Names under which tools are exported for models, and the tools' own.

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
        let all = Offer { custom: &custom, attached: &[], registry: &registry, tenant };
        Some(all.exported_as(&name, self.form).unwrap_or(name))
    }

    /// The name under which a tool is exported in a form.
    pub(crate) fn exported(&self, name: &str, form: Format) -> String {
        let registry = Arc::clone(&self.registry.borrow());
        let all = registry.catalog_of(self.caller.tenant()).after(None).iter();
        let mut all: Vec<&str> =
            all.filter(|it| !it.hosted.manifest.result_use.hidden).map(|entry| entry.name.as_str()).collect();
        let at = all.iter().position(|other| *other == name).unwrap_or_else(|| {
            all.push(name);
            all.len() - 1
        });
        tools::names(&all, form).swap_remove(at)
    }
}
