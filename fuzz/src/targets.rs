//! The fuzz targets. Each target reads bytes as an untrusted sender may send them. It panics if the reader panics, or
//! if a value that was read is written in a form that does not read back to the same value. The test suite replays
//! `fuzz/corpus` through the same functions.

use std::path::Path;

use bytes::Bytes;
use prost::{Message, Name};
use proto::convert::log;
use proto::convert::manifest::{manifest_in, manifest_out};
use proto::convert::object::{ChunkReply, ChunkRequest, Upload};
use proto::convert::snapshot::Snapshot;
use proto::convert::worker::{Heartbeat, Stop, decode_advertisement, decode_answer, decode_question, encode_question};
use proto::subject::Subject;
use proto::v1::request_tool::Format;
use proto::{json, v1};
use run::{CallIndex, Run, Shard, Timestamp};
use schema::Schema;

/// A target: its name, which is its folder in `fuzz/corpus`, and its function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("http_bodies", http_bodies),
    ("grpc_messages", grpc_messages),
    ("turns", turns),
    ("openai_bodies", openai_bodies),
    ("log_entries", log_entries),
    ("worker_messages", worker_messages),
    ("manifests", manifests),
    ("schemas", schemas),
    ("request_tools", request_tools),
    ("files", files),
];

/// The first byte selects one of several readers; the rest is the input.
fn chosen(data: &[u8]) -> Option<(usize, &[u8])> {
    data.split_first().map(|(choice, rest)| (usize::from(*choice), rest))
}

/// Two texts in one input, separated by the first zero byte.
fn two_texts(data: &[u8]) -> Option<(&str, &[u8])> {
    let at = data.iter().position(|byte| *byte == 0)?;
    Some((std::str::from_utf8(data.get(..at)?).ok()?, data.get(at + 1..)?))
}

fn read_json<M: Message + Name + Default + PartialEq>(text: &[u8]) -> Option<M> {
    let message: M = json::read(text, &[]).ok()?;
    let written = json::write(&message);
    let again: M = json::read(written.as_bytes(), &[]).expect("written JSON reads back");
    assert_eq!(json::write(&again), written, "it is written alike");
    Some(message)
}

fn read_binary<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let again = M::decode(message.encode_to_vec().as_slice()).expect("an encoded message decodes");
    assert_eq!(again.encode_to_vec(), message.encode_to_vec(), "it is encoded alike");
    Some(message)
}

/// The further processing of a request that needs no broker.
fn into_domain(request: Request) {
    match request {
        Request::Create(request) => drop(coordinator::inputs::create_run(*request)),
        Request::Append(request) => drop(coordinator::inputs::append_calls(request)),
        Request::Submit(request) => {
            request.outputs.into_iter().for_each(|output| drop(coordinator::inputs::answer(output)));
        }
        Request::Decide(request) => {
            request.decisions.into_iter().for_each(|decision| drop(coordinator::inputs::decision(decision)));
        }
        Request::Other => {}
    }
}

enum Request {
    Create(Box<v1::CreateRunRequest>),
    Append(v1::AppendCallsRequest),
    Submit(v1::SubmitToolOutputsRequest),
    Decide(v1::DecideCallsRequest),
    Other,
}

macro_rules! read_request {
    ($read:ident, $choice:expr, $data:expr) => {
        match $choice % 12 {
            0 => $read::<v1::CreateRunRequest>($data).map(|request| Request::Create(Box::new(request))),
            1 => $read::<v1::AppendCallsRequest>($data).map(Request::Append),
            2 => $read::<v1::SubmitToolOutputsRequest>($data).map(Request::Submit),
            3 => $read::<v1::DecideCallsRequest>($data).map(Request::Decide),
            4 => $read::<v1::CancelRunRequest>($data).map(|_| Request::Other),
            5 => $read::<v1::CancelCallsRequest>($data).map(|_| Request::Other),
            6 => $read::<v1::ListRunsRequest>($data).map(|_| Request::Other),
            7 => $read::<v1::PauseRequest>($data).map(|_| Request::Other),
            8 => $read::<v1::CreateAnswerTokenRequest>($data).map(|_| Request::Other),
            9 => $read::<v1::RedriveWebhooksRequest>($data).map(|_| Request::Other),
            10 => $read::<v1::CreateObjectLinkRequest>($data).map(|_| Request::Other),
            _ => $read::<v1::Tool>($data).map(|_| Request::Other),
        }
    };
}

pub fn http_bodies(data: &[u8]) {
    let Some((choice, body)) = chosen(data) else { return };
    if let Some(request) = read_request!(read_json, choice, body) {
        into_domain(request);
    }
    if let Ok(text) = std::str::from_utf8(body) {
        let fields = text.split('&').filter_map(|field| field.split_once('='));
        drop(json::read_fields::<v1::ListRunsRequest>(fields.clone()));
        drop(json::read_fields::<v1::WatchRunRequest>(fields));
    }
}

pub fn grpc_messages(data: &[u8]) {
    let Some((choice, body)) = chosen(data) else { return };
    if let Some(request) = read_request!(read_binary, choice, body) {
        into_domain(request);
    }
}

pub fn turns(data: &[u8]) {
    let Some((choice, turn)) = chosen(data) else { return };
    let forms = [None, Some("openai-chat"), Some("openai-responses"), Some("anthropic"), Some("gemini"), Some("mcp")];
    let form = forms[choice % forms.len()].map(|name| name.parse().expect("a form's name"));
    let Ok(turn) = formats::turns::Turn::parse(turn, form) else { return };
    let texts = [formats::turns::Part::Text("a\nb"), formats::turns::Part::Json(r#"{"exit_code":1}"#)];
    for answer in turn.answers(|_| Some(formats::turns::Answer::new(texts.to_vec()))) {
        let _: serde_json::Value = serde_json::from_str(answer.get()).expect("an answer is JSON");
        assert!(!answer.get().contains('\n'), "an answer is one line");
    }
    let answers =
        turn.answers(|call| (call.name.len() % 2 == 0).then(|| formats::turns::Answer::error("no \"such\" file")));
    answers.iter().for_each(|answer| assert!(!answer.get().contains('\n'), "an answer is one line"));
}

pub fn openai_bodies(data: &[u8]) {
    let Some((choice, body)) = chosen(data) else { return };
    let hosted = |name: &str| name.starts_with('h').then(|| name.to_owned());
    match choice % 3 {
        0 => match formats::openai::responses::Asked::read(body, &hosted) {
            Ok(formats::openai::responses::Asked::Opened(opened)) => into_domain(Request::Create(Box::new(opened.run))),
            Ok(formats::openai::responses::Asked::Continued(_)) | Err(_) => {}
        },
        1 => {
            if let Ok(asked) = formats::openai::assistants::Asked::read(body, &hosted) {
                into_domain(Request::Create(Box::new(asked.run)));
            }
        }
        _ => {
            if let Ok((request, _)) = formats::openai::assistants::tool_outputs(body, "run_00_x") {
                into_domain(Request::Submit(request));
            }
        }
    }
}

/// Entries of one run: each begins with its place and its length. They are decoded, folded, and encoded again.
pub fn log_entries(data: &[u8]) {
    const RUN: &str = "ty.run.00.run_00_01a20454affe706292a3b95b68bd5058";
    const PLACES: [&str; 5] = ["_.run", "0.job.shell", "1.out.shell", "1.ctl", "0.out.shell"];
    let (mut rest, mut run, mut sequence) = (data, None::<Run>, 0);
    while let Some((choice, more)) = chosen(rest) {
        let Some((&[low, high], more)) = more.split_first_chunk::<2>() else { return };
        let length = usize::from(u16::from_le_bytes([low, high])).min(more.len());
        let (payload, more) = more.split_at(length);
        rest = more;
        sequence += 1;
        let place = PLACES[choice % PLACES.len()];
        let subject: Subject = format!("{RUN}.{place}").parse().expect("a subject of the log");
        let payload = Bytes::copy_from_slice(payload);
        let at = Timestamp(1_795_369_185_000 + sequence * 997);
        drop(log::decode_job(&subject, payload.clone(), at));
        let Ok(entry) = log::decode(&subject, payload, sequence, at) else { continue };
        let run = run.get_or_insert_with(|| Run::new(subject.run));
        run.apply(&entry, &mut Vec::new());
        drop(proto::convert::api::run(run));
    }
}

pub fn worker_messages(data: &[u8]) {
    let Some((choice, payload)) = chosen(data) else { return };
    let payload = Bytes::copy_from_slice(payload);
    macro_rules! again {
        ($decode:path, $encode:path) => {
            if let Ok(read) = $decode(payload) {
                let written = $encode(&read);
                let read = $decode(written.clone()).expect("an encoded message decodes");
                assert_eq!($encode(&read), written, "it is encoded alike");
            }
        };
    }
    match choice % 8 {
        0 => again!(Heartbeat::decode, Heartbeat::encode),
        1 => again!(decode_question, encode_question),
        2 => again!(Stop::decode, Stop::encode),
        3 => again!(Upload::decode, Upload::encode),
        4 => again!(ChunkRequest::decode, ChunkRequest::encode),
        5 => drop(ChunkReply::decode(payload)),
        6 => drop(decode_answer(payload, CallIndex(0))),
        _ => drop(Snapshot::decode(payload, Shard(0))),
    }
}

pub fn manifests(data: &[u8]) {
    let Some((choice, payload)) = chosen(data) else { return };
    let tool = match choice % 3 {
        0 => json::read::<v1::Tool>(payload, &[]).ok(),
        1 => v1::Tool::decode(payload).ok(),
        _ => return drop(decode_advertisement(Bytes::copy_from_slice(payload))),
    };
    let Some(Ok(usable)) = tool.map(manifest_in) else { return };
    let written = manifest_out(&usable.manifest);
    let again = manifest_in(written.clone()).expect("a written manifest is valid");
    assert_eq!(manifest_out(&again.manifest), written, "it is written alike");
}

pub fn schemas(data: &[u8]) {
    let Some((schema, arguments)) = two_texts(data) else { return };
    for compile in [Schema::of_arguments, Schema::compile] {
        let Ok(schema) = compile(schema) else { continue };
        if let Err(violations) = schema.check(arguments) {
            assert!(!violations.is_empty(), "who refuses says why");
            drop(schema::describe(&violations));
        }
    }
}

pub fn request_tools(data: &[u8]) {
    let Some((choice, rest)) = chosen(data) else { return };
    let Some((definition, input)) = two_texts(rest) else { return };
    let definition = definition.to_owned();
    let format = match choice % 3 {
        0 => Format::Lark(definition),
        1 => Format::Regex(definition),
        _ => Format::InputSchema(definition),
    };
    drop(coordinator::inputs::request_tool(format, input));
}

/// Files of an operator. They are not hostile, but an invalid file must be reported and must not end the process.
pub fn files(data: &[u8]) {
    let Some((choice, text)) = chosen(data) else { return };
    let name = ["callers.toml", "callers.json", "hooks.toml", "webhooks.toml"][choice % 4];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("the file is written");
    read_file(name, &path);
}

fn read_file(name: &str, path: &Path) {
    match name {
        "hooks.toml" => drop(hooks::Hooks::read(path)),
        "webhooks.toml" => drop(coordinator::Webhooks::read(path, |_| Some("whsec_c2VjcmV0".to_owned()))),
        _ => drop(coordinator::inputs::callers(path)),
    }
}
