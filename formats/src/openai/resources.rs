//! `tool_resources` of the Assistants API and the files of a run: the same ids of objects, by tool.

use std::collections::BTreeMap;

use proto::v1;
use run::CallSpec;
use serde_json::{Value, json};

use crate::openai::InputError;

/// The files of a run, from `tool_resources`: `{"code_interpreter": {"file_ids": ["object"]}}`. Any tool may have some,
/// and `_all` has those of every tool. A file has its id as its name.
///
/// # Errors
/// An error with a JSON pointer if it has another form, or names vector stores, which are not kept here.
pub fn files(resources: &Value) -> Result<Vec<v1::RunFile>, InputError> {
    const AT: &str = "/tool_resources";
    let tools = match resources {
        Value::Null => return Ok(Vec::new()),
        Value::Object(tools) => tools,
        _ => return Err(InputError::invalid(AT, "an object with the files of each tool was expected")),
    };
    let mut files = Vec::new();
    for (tool, resources) in tools {
        let at = format!("{AT}/{}", tool.replace('~', "~0").replace('/', "~1"));
        for name in ["vector_store_ids", "vector_stores"] {
            let is_empty = resources[name].as_array().is_none_or(Vec::is_empty);
            if !resources[name].is_null() && !is_empty {
                let message = "vector stores are not kept here: give the search its documents by its backend, or files \
                               as `file_ids`";
                return Err(InputError::unsupported(format!("{at}/{name}"), message));
            }
        }
        let ids = match &resources["file_ids"] {
            Value::Null => continue,
            Value::Array(ids) => ids,
            _ => return Err(InputError::invalid(format!("{at}/file_ids"), "a list of ids of objects was expected")),
        };
        for (nth, id) in ids.iter().enumerate() {
            let text = || InputError::invalid(format!("{at}/file_ids/{nth}"), "the id of an object was expected");
            let object_id = id.as_str().ok_or_else(text)?.to_owned();
            files.push(v1::RunFile { tool: tool.clone(), name: object_id.clone(), object_id });
        }
    }
    Ok(files)
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
