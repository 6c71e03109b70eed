//! Both APIs on random runs with crashes, retries, forged entries and late answers. Every stream keeps the rules that
//! the vendor's SDKs require, and is independent of when a reader connected.

use std::collections::BTreeMap;

use formats::openai::share::{Share, SharedRun};
use formats::openai::{assistants, responses};
use proptest::prelude::*;
use run::RunStatus;
use serde_json::Value;

use crate::story::run_id;
use crate::told::{Told, tell, tell_share, with_tools};
use crate::world::{fold, histories, pick, whole_histories};

fn cases(count: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: count.max(default.cases), failure_persistence: None, ..default }
}

fn responses(told: &[Told]) -> Vec<responses::Event> {
    responses_with(told, responses::Items::OneByOne)
}

fn responses_with(told: &[Told], items: responses::Items) -> Vec<responses::Event> {
    let mut stream = responses::Stream::new(run_id(), items);
    told.iter().flat_map(|Told { event, run }| stream.take(event, run)).collect()
}

/// Checks that the events between the beginning and the end of an item belong to it.
fn check_one_item_at_a_time(events: &[&responses::Event]) {
    let mut open: Option<Value> = None;
    for event in events {
        match event.kind {
            "response.output_item.added" => {
                assert!(open.is_none(), "{} begins while {open:?} is open", event.data["item"]);
                open = Some(event.data["item"]["id"].clone());
            }
            "response.output_item.done" => {
                assert_eq!(open.take().as_ref(), Some(&event.data["item"]["id"]), "the open item is done");
            }
            kind => {
                let item = &event.data["item_id"];
                assert!(item.is_null() || open.as_ref() == Some(item), "{kind} of {item} while {open:?} is open");
                assert!(!event.is_last() || open.is_none(), "a response ends between items");
            }
        }
    }
}

fn steps(told: &[Told]) -> (Vec<assistants::Event>, assistants::Stream) {
    steps_of(run_id().into(), told)
}

fn steps_of(of: SharedRun, told: &[Told]) -> (Vec<assistants::Event>, assistants::Stream) {
    let mut stream = assistants::Stream::new(of, "thread_1");
    let events = told.iter().flat_map(|Told { event, run }| stream.take(event, run)).collect();
    (events, stream)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn whole(part: u32) -> responses::ResponseId {
    responses::ResponseId { run: run_id(), share: None, part }
}

/// Checks the stream of one response against the rules of the vendor's SDKs. Returns the text of each of its shells.
fn check_response(id: responses::ResponseId, events: &[&responses::Event]) -> BTreeMap<String, String> {
    let id = id.to_string();
    let (mut added, mut done, mut texts) = (Vec::<Value>::new(), BTreeMap::<usize, Value>::new(), BTreeMap::new());
    for (nth, event) in events.iter().enumerate() {
        let data = &event.data;
        assert_eq!((text(data, "type"), data["sequence_number"].as_u64()), (event.kind, Some(event.sequence)));
        assert_eq!(event.sequence, nth as u64, "numbers rise without gaps where everything is shown");
        assert_eq!(event.kind == "response.created", nth == 0);
        assert_eq!(event.is_last(), nth + 1 == events.len() && event.is_last(), "nothing follows the last event");
        if let Some(response) = data.get("response") {
            assert_eq!(text(response, "id"), id);
            for needed in ["created_at", "model", "object", "parallel_tool_calls", "tool_choice", "tools", "output"] {
                assert!(!response[needed].is_null(), "{needed} is there");
            }
        }
        let Some(place) = data["output_index"].as_u64().map(|place| place as usize) else { continue };
        match event.kind {
            "response.output_item.added" => {
                assert_eq!(place, added.len(), "an item's place is its last one");
                added.push(data["item"].clone());
            }
            "response.output_item.done" => {
                for name in ["type", "id", "call_id"] {
                    assert_eq!(added[place][name], data["item"][name], "{name} of an item never changes");
                }
                assert!(done.insert(place, data["item"].clone()).is_none(), "an item is done once");
            }
            kind => {
                // A shell's call is complete when its commands are emitted, and its attempt starts after that.
                let is_told = place < added.len() && (!event.is_documented() || !done.contains_key(&place));
                assert!(is_told, "{kind} is of an item that is told");
                if !data["item_id"].is_null() {
                    assert_eq!(data["item_id"], added[place]["id"]);
                }
                if kind == "response.shell_call_output_content.delta" {
                    let said: &mut [String; 2] = texts.entry(place).or_default();
                    said[0].push_str(text(&data["delta"], "stdout"));
                    said[1].push_str(text(&data["delta"], "stderr"));
                }
            }
        }
    }
    let outputs = done.iter().filter(|(_, item)| item["type"] == "shell_call_output");
    for (place, item) in outputs.clone() {
        let [stdout, stderr] = texts.get(place).cloned().unwrap_or_default();
        assert_eq!((text(&item["output"][0], "stdout"), text(&item["output"][0], "stderr")), (&*stdout, &*stderr));
    }
    let stands = outputs.filter(|(_, item)| text(item, "status") != "incomplete");
    let shells =
        stands.map(|(_, item)| (text(item, "call_id").to_owned(), text(&item["output"][0], "stdout").to_owned()));
    let shells = shells.collect();
    let last = events.last().filter(|event| event.is_last());
    if let Some(last) = last {
        assert_eq!(done.len(), added.len(), "every item is done at the end");
        assert_eq!(last.data["response"]["output"], Value::Array(done.into_values().collect()));
    }
    shells
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn every_response_is_as_the_sdks_want_it(history in whole_histories(), names in any::<u64>()) {
        let log = with_tools(&history.log, names);
        let events = responses(&tell(&log));
        let parts = events.last().expect("something is said").part;
        for part in 0..=parts {
            let of_part: Vec<&responses::Event> = events.iter().filter(|event| event.part == part).collect();
            prop_assert!(of_part.last().is_some_and(|event| event.is_last()), "part {} of {} has no end", part, parts);
            check_response(whole(part), &of_part);
            check_one_item_at_a_time(&of_part);
        }
        let response = &events.last().expect("the last event").data["response"];
        let (status, kind) = match fold(&log).status() {
            RunStatus::Completed => ("completed", "response.completed"),
            RunStatus::Failed => ("failed", "response.failed"),
            RunStatus::Cancelled => ("cancelled", "response.incomplete"),
            RunStatus::Expired => ("incomplete", "response.incomplete"),
            RunStatus::InProgress | RunStatus::RequiresAction => unreachable!("it has ended"),
        };
        prop_assert_eq!((text(response, "status"), events.last().map(|event| event.kind)), (status, Some(kind)));
    }

    #[test]
    fn interleaved_items_are_as_the_sdks_want_them_and_the_same_ones(history in whole_histories(), names in any::<u64>()) {
        let log = with_tools(&history.log, names);
        let told = tell(&log);
        let (interleaved, one_by_one) = (responses_with(&told, responses::Items::Interleaved), responses(&told));
        let parts = interleaved.last().expect("something is said").part;
        prop_assert_eq!(one_by_one.last().map(|event| event.part), Some(parts));
        for part in 0..=parts {
            let of_part: Vec<&responses::Event> = interleaved.iter().filter(|event| event.part == part).collect();
            prop_assert!(of_part.last().is_some_and(|event| event.is_last()), "part {} of {} has no end", part, parts);
            check_response(whole(part), &of_part);
        }
        let input = |events: &[responses::Event]| events.last().expect("the last event").data["response"]["toolyard"]["input"].clone();
        prop_assert_eq!(input(&interleaved), input(&one_by_one));
    }

    #[test]
    fn a_share_of_a_run_is_as_the_sdks_want_it_and_ends_with_its_own_calls(history in whole_histories(), names in any::<u64>(), places in (pick(), pick())) {
        let log = with_tools(&history.log, names);
        let run = fold(&log);
        let calls: Vec<&str> = run.requested_calls().map(|call| call.spec().id.as_str()).collect();
        let [one, other] = [places.0, places.1].map(|place| place.among(calls.len().max(1)));
        let calls = calls.get(one.min(other)..=one.max(other)).unwrap_or_default();
        // Questions may be between the calls.
        let Some(share) = Share::of(&run, calls.iter().copied()) else { return Ok(()) };
        let of = SharedRun { run: run_id(), share: Some(share) };
        let told = tell_share(&log, share, run::FloorPolicy::Arrival);
        let mut stream = responses::Stream::new(of, responses::Items::OneByOne);
        let events: Vec<responses::Event> = told.iter().flat_map(|Told { event, run }| stream.take(event, run)).collect();
        let parts = events.last().expect("something is said").part;
        for part in 0..=parts {
            let of_part: Vec<&responses::Event> = events.iter().filter(|event| event.part == part).collect();
            prop_assert!(of_part.last().is_some_and(|event| event.is_last()), "part {} of {} has no end", part, parts);
            check_response(responses::ResponseId { run: run_id(), share: Some(share), part }, &of_part);
            check_one_item_at_a_time(&of_part);
        }
        let response = &events.last().expect("the last event").data["response"];
        let given: Vec<&str> = response["toolyard"]["input"].as_array().expect("a list").iter().map(|item| text(item, "call_id")).collect();
        prop_assert_eq!(given, calls);
        let late: Vec<Told> = told.iter().map(|told| Told { event: told.event.clone(), run: run.clone() }).collect();
        let (steps, stream) = steps_of(of, &told);
        prop_assert_eq!(&steps, &steps_of(of, &late).0, "nobody can tell how far the run had come");
        prop_assert!(steps.last().is_some_and(|event| event.is_last() && event.kind != "thread.run.requires_action"));
        prop_assert_eq!(stream.run()["id"].clone(), Value::from(of.to_string()));
    }

    #[test]
    fn a_model_is_given_an_output_for_each_call_of_a_run_that_has_ended(history in whole_histories(), names in any::<u64>()) {
        let log = with_tools(&history.log, names);
        let events = responses(&tell(&log));
        let response = &events.last().expect("the last event").data["response"];
        let given: Vec<&str> = response["toolyard"]["input"].as_array().expect("a list").iter().map(|item| text(item, "call_id")).collect();
        let run = fold(&log);
        let called: Vec<&str> = run.requested_calls().map(|call| call.spec().id.as_str()).collect();
        prop_assert_eq!(given, called);
    }

    #[test]
    fn nobody_can_tell_how_far_the_run_had_come_when_a_face_was_told_of_it(history in histories(), names in any::<u64>()) {
        let log = with_tools(&history.log, names);
        let (told, end) = (tell(&log), fold(&log));
        let late: Vec<Told> = told.iter().map(|told| Told { event: told.event.clone(), run: end.clone() }).collect();
        prop_assert_eq!(responses(&told), responses(&late));
        prop_assert_eq!(steps(&told).0, steps(&late).0);
    }

    #[test]
    fn who_comes_back_gets_the_rest(history in histories(), names in any::<u64>(), at in pick()) {
        let log = with_tools(&history.log, names);
        let whole = responses(&tell(&log));
        let cut = at.among(log.len() + 1);
        let before = responses(&tell(&log[..cut]));
        prop_assert_eq!(&whole[..before.len()], &before[..], "what was said stands");
        let Some(last) = before.last() else { return Ok(()) };
        let rest = whole.iter().filter(|event| (event.part, event.sequence) > (last.part, last.sequence));
        let resumed: Vec<String> = before.iter().chain(rest).map(|event| event.data.to_string()).collect();
        let uncut: Vec<String> = whole.iter().map(|event| event.data.to_string()).collect();
        prop_assert_eq!(resumed, uncut);
    }

    #[test]
    fn a_shell_shows_what_stands_and_nothing_twice(history in whole_histories()) {
        let log = with_tools(&history.log, crate::told::SHELLS_ONLY);
        let told = tell(&log);
        let events = responses(&told);
        let stands = crate::told::standing_output(&told);
        let mut shown = BTreeMap::new();
        for part in 0..=events.last().expect("something is said").part {
            let of_part: Vec<&responses::Event> = events.iter().filter(|event| event.part == part).collect();
            shown.extend(check_response(whole(part), &of_part));
        }
        for (call, said) in stands.iter().filter(|(_, said)| !said.is_empty()) {
            if let Some(shown) = shown.get(call) {
                prop_assert_eq!(shown, said, "{} shows what stands of its output", call);
            }
        }
    }

    #[test]
    fn an_assistants_run_requires_action_exactly_when_the_run_does(history in whole_histories(), at in pick()) {
        let log = &history.log[..1 + at.among(history.log.len())];
        let run = fold(log);
        // The end of a call may be told after that of a call that asks its client.
        let is_running = run.calls().iter().any(|call| matches!(call.state(), run::CallState::Running(_)));
        // The end of an attempt, and with it that of its questions, is told with the next attempt.
        let asker = |by: run::AskedBy| run.call(by.attempt.call).map(run::Call::state);
        let is_tried_again = run.calls().iter().any(|call| {
            let asker = call.spec().asked_by.and_then(asker);
            asker.is_some_and(|state| matches!(state, run::CallState::Queued { .. }))
        });
        if run.opened_at().is_none() || run.status().is_final() || is_running || is_tried_again {
            return Ok(());
        }
        let (events, stream) = steps(&tell(log));
        let requires_action = run.status() == RunStatus::RequiresAction;
        prop_assert_eq!(text(&stream.run(), "status") == "requires_action", requires_action, "{}", stream.run());
        let asks = run.calls().iter().any(|call| matches!(call.state(), run::CallState::WaitingForClient));
        let is_over = events.last().is_some_and(assistants::Event::is_last);
        prop_assert!(is_over || !requires_action || asks, "the stream of an answered client ends");
    }

    #[test]
    fn a_step_is_what_its_deltas_add_up_to(history in whole_histories(), names in any::<u64>()) {
        let log = with_tools(&history.log, names);
        let told = tell(&log);
        let (events, stream) = steps(&told);
        let (mut outputs, mut ended) = (BTreeMap::<String, String>::new(), BTreeMap::<String, u32>::new());
        // The SDK for Node throws if two steps are in progress, or if a step begins or ends twice.
        let mut active: Option<String> = None;
        for event in &events {
            let id = text(&event.data, "id").to_owned();
            match event.kind {
                "thread.run.step.created" => {
                    prop_assert!(active.is_none() && !ended.contains_key(&id), "{} begins while {:?} goes on", id, active);
                    active = Some(id);
                }
                "thread.run.step.in_progress" => prop_assert_eq!(active.as_ref(), Some(&id)),
                "thread.run.step.delta" => {
                    prop_assert_eq!(active.as_ref(), Some(&id));
                    let call = &event.data["delta"]["step_details"]["tool_calls"][0];
                    outputs.entry(id).or_default().push_str(text(&call["function"], "output"));
                }
                kind if kind.starts_with("thread.run.step.") => {
                    prop_assert!(active.as_ref().is_none_or(|active| *active == id));
                    prop_assert!(ended.insert(id.clone(), event.part).is_none(), "a step ends once");
                    let output = &event.data["step_details"]["tool_calls"][0]["function"]["output"];
                    prop_assert!(output.is_string());
                    if active.take().is_some() {
                        prop_assert_eq!(output.as_str(), outputs.get(&id).map(String::as_str));
                    }
                }
                // A call that asks its client goes on in the next part, whose stream begins its step again.
                "thread.run.requires_action" => active = None,
                _ => prop_assert!(!event.is_last() || active.is_none(), "a part ends between steps"),
            }
        }
        prop_assert_eq!(stream.steps().len(), ended.len());
        let lasts = events.iter().enumerate().filter(|(nth, event)| {
            event.is_last() && events.get(nth + 1).is_some_and(|next| next.part == event.part)
        });
        prop_assert_eq!(lasts.count(), 0, "nothing follows the last event of a part");
        prop_assert!(events.last().is_some_and(|event| event.is_last() && event.kind != "thread.run.requires_action"));
    }
}
