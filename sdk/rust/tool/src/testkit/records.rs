//! Records in memory, for tests of tools that keep some.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use proto::convert::record::{Record, RecordKey, RecordOperation, RecordPage, RecordReply, RecordRequest};
use run::{CallIndex, Fields, RunId};
use serde_json::Value;

use super::{Call, Called, launch};
use crate::records::RecordStore;
use crate::table::Table;

/// Records that several calls share. Clones share them as well. There is no limit of their number.
#[derive(Debug, Clone, Default)]
pub struct Records(Arc<Mutex<Memory>>);

#[derive(Debug, Default)]
struct Memory {
    records: BTreeMap<RecordKey, (u64, Bytes, (RunId, CallIndex))>,
    written: u64,
    calls: u16,
}

impl Records {
    /// Calls a tool of a table, as a new call, and waits for its end.
    ///
    /// # Panics
    /// When the name is malformed, or the tool panics.
    pub async fn call(&self, table: &Table, tool: &str, arguments: Value) -> Called {
        self.start(table, tool, arguments).end().await
    }

    /// As [`Self::call`], for a call that is to be watched or cancelled on its way.
    ///
    /// # Panics
    /// When the name is malformed.
    pub fn start(&self, table: &Table, tool: &str, arguments: Value) -> Call {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.calls += 1;
        let number = memory.calls;
        drop(memory);
        self.launch(table, (tool, arguments), number)
    }

    /// Executes the latest call once more, as another attempt after its worker was lost.
    ///
    /// # Panics
    /// When the name is malformed, or the tool panics.
    pub async fn repeat(&self, table: &Table, tool: &str, arguments: Value) -> Called {
        self.repeat_earlier(0, table, tool, arguments).await
    }

    /// Executes an earlier call once more: the one so many calls before the latest.
    ///
    /// # Panics
    /// When the name is malformed, or the tool panics.
    pub async fn repeat_earlier(&self, before: u16, table: &Table, tool: &str, arguments: Value) -> Called {
        let number = self.0.lock().unwrap_or_else(PoisonError::into_inner).calls - before;
        self.launch(table, (tool, arguments), number).end().await
    }

    fn launch(&self, table: &Table, (tool, arguments): (&str, Value), number: u16) -> Call {
        let store = self.store();
        launch(table, (tool, arguments), Fields::default(), |context| {
            let mut spec = (*context.execution.call).clone();
            spec.id = format!("call-{number}").parse().expect("a call id");
            context.execution.call = Arc::new(spec);
            context.execution.index = CallIndex(number);
            context.execution.records = store;
        })
    }

    pub(crate) fn store(&self) -> RecordStore {
        let memory = Arc::clone(&self.0);
        RecordStore::new(move |wanted| {
            let reply = memory.lock().unwrap_or_else(PoisonError::into_inner).perform(wanted);
            Box::pin(async { Ok(reply) })
        })
    }
}

impl Memory {
    fn perform(&mut self, wanted: RecordRequest) -> RecordReply {
        let author = (wanted.run, wanted.call);
        let current = |key: &RecordKey| self.records.get(key).map_or(0, |(revision, ..)| *revision);
        match wanted.operation {
            RecordOperation::Get(key) => {
                let records = self.shown(&key, author).into_iter().collect();
                RecordReply::Page(RecordPage { records, more: false })
            }
            RecordOperation::Put { key, value, revision } => match self.records.get(&key) {
                Some((stored, same, by)) if (same, *by) == (&value, author) => RecordReply::Stored(*stored),
                _ if current(&key) != revision => RecordReply::Conflict(current(&key)),
                _ => {
                    self.written += 1;
                    self.records.insert(key, (self.written, value, author));
                    RecordReply::Stored(self.written)
                }
            },
            RecordOperation::Delete { key, revision } => match current(&key) {
                0 => RecordReply::Stored(0),
                found if found == revision => {
                    self.records.remove(&key);
                    RecordReply::Stored(0)
                }
                found => RecordReply::Conflict(found),
            },
            RecordOperation::List { prefix, after, limit } => {
                let keys =
                    self.records.keys().filter(|key| key.as_str().starts_with(&prefix) && key.as_str() > &*after);
                let mut records: Vec<Record> = keys.take(limit + 1).filter_map(|key| self.shown(key, author)).collect();
                let more = records.len() > limit;
                records.truncate(limit);
                RecordReply::Page(RecordPage { records, more })
            }
        }
    }

    fn shown(&self, key: &RecordKey, reader: (RunId, CallIndex)) -> Option<Record> {
        let (revision, value, author) = self.records.get(key)?;
        Some(Record { key: key.clone(), value: value.clone(), revision: *revision, is_own: *author == reader })
    }
}
