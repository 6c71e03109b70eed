//! Which calls need an approval although neither their caller nor their tool requires one.

use run::{Manifest, Permission, ToolName};

use crate::Tools;

/// The rule for calls of dangerous tools: those that reach beyond this system (permission EXTERNAL).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dangerous {
    /// They await approval, unless their run disables it.
    #[default]
    Ask,
    /// They await approval, whatever their run sets.
    Always,
    /// They do not, unless their run enables it.
    Never,
}

/// The deployment's rules for approvals.
#[derive(Debug, Clone, Default)]
pub struct Confirm {
    dangerous: Dangerous,
    except: Option<Tools>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmation {
    NotNeeded,
    Wanted,
    /// They are never approved by default.
    Required,
}

impl Confirm {
    pub(crate) fn new(dangerous: Dangerous, except: &[String]) -> Result<Self, globset::Error> {
        let except = (!except.is_empty()).then(|| Tools::new(except)).transpose()?;
        Ok(Self { dangerous, except })
    }

    /// Whether a call of a tool awaits approval, given the setting of its run, if there is one.
    #[must_use]
    pub fn of(&self, manifest: &Manifest, alias_of: Option<&ToolName>, wish: Option<bool>) -> Confirmation {
        let is_known = || self.except.as_ref().is_some_and(|except| except.have(&manifest.name, alias_of));
        match (manifest.permission, self.dangerous, wish) {
            (Permission::Read | Permission::Write, _, _) => Confirmation::NotNeeded,
            (Permission::External, Dangerous::Always, _) if !is_known() => Confirmation::Required,
            (Permission::External, Dangerous::Ask, None | Some(true)) if !is_known() => Confirmation::Wanted,
            (Permission::External, Dangerous::Never, Some(true)) => Confirmation::Wanted,
            (Permission::External, _, _) => Confirmation::NotNeeded,
        }
    }
}
