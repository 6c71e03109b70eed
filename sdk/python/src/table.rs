//! The tools of an app: a table of the Rust SDK whose tools call back into Python.

use std::sync::Mutex;

use ::worker::declared::Declared;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::call::PythonTool;
use crate::inbox::Inbox;

/// The tools of an app.
#[pyclass(frozen)]
pub(crate) struct Table(Mutex<::worker::Table>);

#[pymethods]
impl Table {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(::worker::Table::new()))
    }

    /// Hosts a tool that blocks by its declaration, a JSON object. `start` is called with a `Call` and the arguments
    /// as JSON, on any thread; it returns an object whose method `cancel` is called if the call is to stop.
    fn host(&self, declaration: &str, start: Py<PyAny>) -> PyResult<()> {
        self.add(declaration, PythonTool::OnThread { start })
    }

    /// Hosts an async tool by its declaration. The inbox has its calls, with this number.
    fn host_in_loop(&self, declaration: &str, inbox: &Inbox, tool: u32) -> PyResult<()> {
        self.add(declaration, PythonTool::InLoop { calls: inbox.outside(), tool })
    }

    /// The names of the tools.
    fn names(&self) -> Vec<String> {
        self.table().manifests().map(|manifest| manifest.name.to_string()).collect()
    }
}

impl Table {
    fn add(&self, declaration: &str, tool: PythonTool) -> PyResult<()> {
        let wrong = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let mut declaration = serde_json::Deserializer::from_str(declaration);
        let declared: Declared = serde_path_to_error::deserialize(&mut declaration).map_err(|error| wrong(&error))?;
        let (about, schema) = (declared.about().map_err(|error| wrong(&error))?, declared.input_schema.to_string());
        let mut table = self.0.lock().expect("no code panics while it holds the table");
        let hosted = table.clone().host_any(&declared.name, schema, about, tool);
        *table = hosted.map_err(|error| wrong(&error))?;
        Ok(())
    }

    /// The table with all tools so far.
    pub(crate) fn table(&self) -> ::worker::Table {
        self.0.lock().expect("no code panics while it holds the table").clone()
    }
}
