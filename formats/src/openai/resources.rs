//! `tool_resources` of the Assistants API and the files of a run: the same ids of objects, by tool.

use std::collections::{BTreeMap, BTreeSet};

use proto::v1;
use run::CallSpec;
use serde_json::{Value, json};

use crate::openai::InputError;

const AT: &str = "/tool_resources";
/// The tool whose files are those of every tool.
const ALL: &str = "_all";

/// The files of a run, from `tool_resources`: `{"code_interpreter": {"file_ids": ["object"]}}`. Any tool may have some,
/// and `_all` has those of every tool. A file has its id as its name. Three more forms are the same:
/// `{"functions": [{"name": "tool", "file_ids": ["object"]}]}`, `{"file_search": {"vector_stores": [{"file_ids":
/// ["object"]}]}}`, whose files the tool reads itself, and a list of ids, which are files of every tool.
///
/// # Errors
/// An error with a JSON pointer if it has another form, or names vector stores, which are not kept here.
pub fn files(resources: &Value) -> Result<Vec<v1::RunFile>, InputError> {
    let mut files = Files(Vec::new());
    match resources {
        Value::Null => {}
        Value::Array(_) => files.add(ALL, resources, AT)?,
        Value::Object(tools) => {
            for (tool, resources) in tools {
                let at = format!("{AT}/{}", tool.replace('~', "~0").replace('/', "~1"));
                match resources {
                    Value::Null => {}
                    Value::Array(_) if tool == "functions" => files.of_functions(resources, &at)?,
                    Value::Object(_) => files.of_tool(tool, resources, &at)?,
                    _ => return Err(InputError::invalid(at, "an object with `file_ids` was expected")),
                }
            }
        }
        _ => return Err(InputError::invalid(AT, "an object with the files of each tool was expected")),
    }
    Ok(files.0)
}

/// The files that were read so far.
struct Files(Vec<v1::RunFile>);

impl Files {
    fn of_tool(&mut self, tool: &str, resources: &Value, at: &str) -> Result<(), InputError> {
        let stores = &resources["vector_store_ids"];
        if !stores.is_null() && stores.as_array().is_none_or(|ids| !ids.is_empty()) {
            let message = "vector stores are not kept here: give the search its documents by its backend, or files as \
                           `file_ids`";
            return Err(InputError::unsupported(format!("{at}/vector_store_ids"), message));
        }
        self.add(tool, &resources["file_ids"], &format!("{at}/file_ids"))?;
        for (nth, store) in list(&resources["vector_stores"], &format!("{at}/vector_stores"))?.iter().enumerate() {
            self.add(tool, &store["file_ids"], &format!("{at}/vector_stores/{nth}/file_ids"))?;
        }
        Ok(())
    }

    fn of_functions(&mut self, functions: &Value, at: &str) -> Result<(), InputError> {
        for (nth, function) in list(functions, at)?.iter().enumerate() {
            let name = function["name"].as_str().ok_or_else(|| {
                InputError::invalid(format!("{at}/{nth}/name"), "the name of the function's tool was expected")
            })?;
            self.add(name, &function["file_ids"], &format!("{at}/{nth}/file_ids"))?;
        }
        Ok(())
    }

    /// A file is given to a tool once.
    fn add(&mut self, tool: &str, ids: &Value, at: &str) -> Result<(), InputError> {
        for (nth, id) in list(ids, at)?.iter().enumerate() {
            let text = || InputError::invalid(format!("{at}/{nth}"), "the id of an object was expected");
            let object_id = id.as_str().ok_or_else(text)?.to_owned();
            let file = v1::RunFile { tool: tool.to_owned(), name: object_id.clone(), object_id };
            if !self.0.contains(&file) {
                self.0.push(file);
            }
        }
        Ok(())
    }
}

/// The members of a list that may be missing.
fn list<'a>(value: &'a Value, at: &str) -> Result<&'a [Value], InputError> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(list) => Ok(list),
        _ => Err(InputError::invalid(at, "a list was expected")),
    }
}

/// The ids of all files in `tool_resources` that [`of_calls`] has made, each once.
pub fn ids(resources: &Value) -> Vec<&str> {
    let tools = resources.as_object().into_iter().flat_map(serde_json::Map::values);
    let all = tools.filter_map(|of_tool| of_tool["file_ids"].as_array()).flatten().filter_map(Value::as_str);
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The files that calls may open, as `tool_resources`; null if there are none.
pub fn of_calls<'a>(calls: impl IntoIterator<Item = &'a CallSpec>) -> Value {
    let mut tools = BTreeMap::<String, Vec<String>>::new();
    for spec in calls {
        for file in &spec.files {
            let (ids, id) = (tools.entry(spec.tool.to_string()).or_default(), file.object.id.to_string());
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    let resources: serde_json::Map<String, Value> =
        tools.into_iter().map(|(tool, ids)| (tool, json!({ "file_ids": ids }))).collect();
    if resources.is_empty() { Value::Null } else { resources.into() }
}
