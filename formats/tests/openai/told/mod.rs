//! The events of a log as its reader receives them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use formats::openai::share::Share;
use proto::convert::api;
use proto::v1;
use proto::v1::run_event::Event as Wire;
use run::{CallSpec, Entry, Event, FloorPolicy, OutputKind, Run, Section, Sequencer};

use crate::story::run_id;

/// An event, and the state of the run at that time.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) event: v1::RunEvent,
    pub(crate) run: Run,
}

pub(crate) fn tell(log: &[Entry]) -> Vec<Told> {
    tell_by(log, FloorPolicy::Arrival)
}

/// The events of some calls alone, as a reader of a shared run receives them.
pub(crate) fn tell_share(log: &[Entry], share: Share, policy: FloorPolicy) -> Vec<Told> {
    tell_section(log, Some(Section::new(share.places())), policy)
}

pub(crate) fn tell_by(log: &[Entry], policy: FloorPolicy) -> Vec<Told> {
    tell_section(log, None, policy)
}

fn tell_section(log: &[Entry], mut section: Option<Section>, policy: FloorPolicy) -> Vec<Told> {
    let (mut run, mut sequencer, mut told) = (Run::new(run_id()), Sequencer::new(policy), Vec::new());
    for entry in log {
        let (mut heard, mut spoken, mut events) = (Vec::new(), Vec::new(), Vec::new());
        run.apply(entry, &mut heard);
        section.iter_mut().for_each(|section| section.narrow(&run, &mut heard));
        sequencer.observe(entry.at, &heard, &mut spoken);
        for spoken in &spoken {
            let holder = match &spoken.what {
                OutputKind::Output { span, .. } => {
                    log.iter().find(|entry| entry.sequence == span.position.sequence).expect("it is in the log")
                }
                _ => entry,
            };
            api::run_events(&run, holder, spoken, &mut events);
        }
        told.extend(events.into_iter().map(|event| Told { event, run: run.clone() }));
    }
    told
}

const NAMES: [&str; 8] = [
    "bash",
    "tool",
    "corp.web_search",
    "image_generation",
    "file_search",
    "mcp_list_tools",
    "a__shell",
    "code_interpreter",
];
/// Gives every tool the name `bash`.
pub(crate) const SHELLS_ONLY: u64 = 0;

/// The log of a run with tools of these names: three bits select each.
pub(crate) fn with_tools(log: &[Entry], names: u64) -> Vec<Entry> {
    let mut count = 0;
    let mut renamed = |calls: &mut Vec<Arc<CallSpec>>| {
        for call in calls {
            let name = NAMES[(names >> (3 * (count % 20)) & 7) as usize];
            *call = Arc::new(CallSpec { tool: name.parse().expect("a name"), ..CallSpec::clone(call) });
            count += 1;
        }
    };
    let mut log = log.to_vec();
    for event in log.iter_mut().flat_map(|entry| &mut entry.events) {
        match event {
            Event::RunOpened(opened) => renamed(&mut opened.calls),
            Event::CallsAppended { calls } => renamed(calls),
            _ => {}
        }
    }
    log
}

/// The output of each call without withdrawn output.
pub(crate) fn standing_output(told: &[Told]) -> BTreeMap<String, String> {
    let mut stands = BTreeMap::<String, String>::new();
    for Told { event, .. } in told {
        match event.event.as_ref().expect("an event") {
            Wire::CallOutput(output) => {
                let Some(v1::call_output::Piece::Content(content)) = &output.piece else { continue };
                let Some(v1::content::Body::Text(text)) = &content.body else { continue };
                stands.entry(output.call_id.clone()).or_default().push_str(text);
            }
            Wire::CallOutputWithdrawn(withdrawn) => drop(stands.remove(&withdrawn.call_id)),
            _ => {}
        }
    }
    stands
}
