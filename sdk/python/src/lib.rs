//! The native part of the Python package `toolyard`: Python functions become tools of the Rust worker, and the Rust
//! client is called with JSON. Types, schemas and conversions of Python values are in the package's Python part.

mod call;
mod client;
mod inbox;
mod kit;
mod settle;
mod table;
mod worker;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
#[pyo3(name = "_native")]
mod native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::client::{Client, Turn, Watch};
    #[pymodule_export]
    use crate::inbox::Inbox;
    #[pymodule_export]
    use crate::kit::Running;
    #[pymodule_export]
    use crate::settle::Work;
    #[pymodule_export]
    use crate::table::Table;
    #[pymodule_export]
    use crate::worker::Worker;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // TLS of every part is this one. Another extension of the process may have chosen before.
        drop(rustls::crypto::ring::default_provider().install_default());
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Logs of the native part go to standard error, as the program `toolyard` writes them. `TOOLYARD_LOG` selects the
    /// level.
    #[pyfunction]
    fn init_logs(json: bool) -> PyResult<()> {
        crate::worker::init_logs(json)
    }
}
