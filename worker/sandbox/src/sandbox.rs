//! Where a worker's programs are started, and under which rules.

use std::path::PathBuf;
use std::sync::Arc;

use toolyard_tool::Left;

use crate::guarded::{Guarded, Guards};
use crate::request::{Job, Request, StartError};
use crate::{NoGuard, User};

/// The rules for all programs that a worker starts.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Files that programs must not open, as the worker's keys. A kernel with Landlock (Linux 5.13, if it is enabled)
    /// keeps programs from them; see [`warn_of_gaps`](crate::warn_of_gaps).
    pub hidden: Vec<PathBuf>,
    /// The user as which programs run; `None`: the worker's. Only root can choose another: see
    /// [`choose_user`](crate::choose_user).
    pub user: Option<User>,
}

/// Starts programs, each under a guard. Cheap to clone: tools and origins get a clone when they are made.
#[derive(Debug, Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    guards: Guards,
}

impl Sandbox {
    /// # Errors
    /// When the program's main function does not begin with [`enter`](crate::enter).
    pub fn new(settings: Settings) -> Result<Self, NoGuard> {
        crate::program()?;
        Ok(Self { inner: Arc::new(Inner { settings, guards: Guards::default() }) })
    }

    /// The rules of this sandbox.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Starts a program. It runs until it ends, or until the [`Guarded`] is dropped. It ends with the worker in any
    /// case.
    ///
    /// `left` receives its end if the `Guarded` is dropped before all of the program's processes have ended: the
    /// context's [`left`](toolyard_tool::Context::left) for a program of a call, `Left::default()` for one that belongs
    /// to no call, as a server that is kept for many calls.
    ///
    /// # Errors
    /// When the request is not valid or no guard can be started. A program that cannot be started, as one that is not
    /// installed, is reported later: [`Report::Failed`](crate::Report::Failed).
    pub async fn start(&self, request: Request, left: Left) -> Result<Guarded, StartError> {
        request.check()?;
        let Settings { hidden, user } = self.inner.settings.clone();
        self.inner.guards.start(&Job { request, hidden, user }, left).await
    }
}
