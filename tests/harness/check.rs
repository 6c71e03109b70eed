//! Properties of every output stream, for every reader and after every crash.

use std::collections::HashMap;

use proto::v1::run_event::Event;
use proto::v1::{self, RunEvent};

/// Numbers without gaps from 0, a beginning, an end, and one speaker at a time.
pub fn whole(events: &[RunEvent], one_speaker: bool) {
    for (event, number) in events.iter().zip(0..) {
        assert_eq!(event.sequence, number, "numbers are contiguous: {events:#?}");
    }
    let kinds: Vec<&Event> = kinds(events);
    assert!(matches!(kinds.first(), Some(Event::RunOpened(_))), "a run begins: {events:#?}");
    assert!(matches!(kinds.last(), Some(Event::RunEnded(_))), "a run ends: {events:#?}");
    if one_speaker {
        let mut floor: Option<&str> = None;
        // Questions of running calls never have it.
        let mut questions: Vec<&str> = Vec::new();
        for kind in &kinds {
            match kind {
                Event::CallWaiting(waiting) if !waiting.asked_by_call_id.is_empty() => questions.push(&waiting.call_id),
                Event::CallEnded(ended) if questions.contains(&ended.call_id.as_str()) => {}
                Event::CallSpeaking(speaking) => {
                    assert_eq!(floor, None, "{} speaks before the speaker ended", speaking.call_id);
                    floor = Some(&speaking.call_id);
                }
                Event::CallOutput(output) => assert_eq!(floor, Some(output.call_id.as_str()), "out of turn"),
                Event::CallEnded(ended) => assert_eq!(floor.take(), Some(ended.call_id.as_str()), "ended out of turn"),
                _ => {}
            }
        }
    }
}

pub fn kinds(events: &[RunEvent]) -> Vec<&Event> {
    events.iter().map(|event| event.event.as_ref().expect("every event has a kind")).collect()
}

/// The output of each call after withdrawals; chunk numbers must be contiguous from 0.
pub fn said(events: &[RunEvent]) -> HashMap<String, String> {
    let mut said: HashMap<String, (u32, String)> = HashMap::new();
    for kind in kinds(events) {
        match kind {
            Event::CallOutput(output) => {
                let (next, text) = said.entry(output.call_id.clone()).or_default();
                assert_eq!(output.chunk, *next, "chunks of {} are contiguous", output.call_id);
                *next += 1;
                if let Some(v1::call_output::Piece::Content(v1::Content {
                    body: Some(v1::content::Body::Text(piece)),
                    ..
                })) = &output.piece
                {
                    text.push_str(piece);
                }
            }
            Event::CallOutputWithdrawn(withdrawn) => {
                said.remove(&withdrawn.call_id);
            }
            _ => {}
        }
    }
    said.into_iter().map(|(call, (_, text))| (call, text)).collect()
}

/// How each call ended; once each.
pub fn outcomes(events: &[RunEvent]) -> HashMap<String, v1::CallOutcome> {
    let mut outcomes = HashMap::new();
    for kind in kinds(events) {
        if let Event::CallEnded(ended) = kind {
            let outcome = ended.outcome.clone().expect("an end says how");
            assert!(outcomes.insert(ended.call_id.clone(), outcome).is_none(), "{} ended twice", ended.call_id);
        }
    }
    outcomes
}

/// The text of a result.
pub fn text(outcome: &v1::CallOutcome) -> String {
    let texts = outcome.result.iter().map(|content| match &content.body {
        Some(v1::content::Body::Text(text) | v1::content::Body::Json(text)) => text.clone(),
        _ => String::new(),
    });
    texts.collect()
}
