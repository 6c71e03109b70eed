//! The ids by which a client of an older revision goes on with a call: those of its stream's events, with which any
//! replica resumes it, and those of the questions that it is asked in between. They name the run; the caller's rights
//! are checked when they are used.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use run::{CallId, RunId};
use serde_json::value::RawValue;

const QUESTION: &str = "question";

/// The place in the stream of a call.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) run: RunId,
    /// The id of the request.
    pub(super) id: Box<RawValue>,
    pub(super) progress_token: Option<Box<RawValue>>,
    pub(super) after: Option<u64>,
}

impl Place {
    /// The id of an event.
    pub(super) fn event_id(&self) -> String {
        let after = self.after.map_or_else(|| "-".to_owned(), |after| after.to_string());
        let token = self.progress_token.as_ref().map_or("", |token| token.get());
        let (id, token) = (BASE64_URL_SAFE_NO_PAD.encode(self.id.get()), BASE64_URL_SAFE_NO_PAD.encode(token));
        format!("{}.{after}.{id}.{token}", self.run)
    }

    pub(super) fn read(event_id: &str) -> Option<Self> {
        let mut fields = event_id.split('.');
        let (run, after) = (fields.next()?.parse().ok()?, fields.next()?);
        let after = if after == "-" { None } else { Some(after.parse().ok()?) };
        let id = json(fields.next()?)??;
        let progress_token = json(fields.next()?)?;
        fields.next().is_none().then_some(Self { run, id, progress_token, after })
    }
}

/// Encoded JSON, which may be missing; the outer `None` if it is malformed.
fn json(encoded: &str) -> Option<Option<Box<RawValue>>> {
    if encoded.is_empty() {
        return Some(None);
    }
    let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?;
    RawValue::from_string(text).ok().map(Some)
}

/// The id of the request that asks the client about a call.
pub(super) fn question_id(run: RunId, call: &CallId) -> String {
    format!("{QUESTION}:{run}:{call}")
}

/// The call that such a request asked about.
pub(super) fn question(id: &str) -> Option<(RunId, CallId)> {
    let (kind, rest) = id.split_once(':')?;
    let (run, call) = rest.split_once(':').filter(|_| kind == QUESTION)?;
    Some((run.parse().ok()?, call.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunId {
        "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().unwrap()
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn an_event_names_the_place_in_its_stream() {
        for (token, after) in [(None, None), (Some(raw("\"p.1\"")), Some(12))] {
            let place = Place { run: run(), id: raw("\"a.b\""), progress_token: token, after };
            let read = Place::read(&place.event_id()).expect("it is one");
            assert_eq!((read.run, read.id.get(), read.after), (run(), "\"a.b\"", after));
            assert_eq!(read.progress_token.is_some(), place.progress_token.is_some());
        }
        for wrong in
            ["", "7", "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f.x.MQ.", "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f.-.."]
        {
            assert!(Place::read(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_question_names_its_call() {
        let call: CallId = "a:b".parse().unwrap();
        assert_eq!(question(&question_id(run(), &call)), Some((run(), call)));
        assert_eq!(question("1"), None);
        assert_eq!(question("other:run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f:a"), None);
    }
}
