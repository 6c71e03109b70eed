//! The console without a terminal and without a coordinator: events in, effects and a picture out.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proto::v1;
use proto::v1::run_event::Event as Said;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::draw::{Theme, draw};
use super::effect::{Action, Done, Effect, Event, Explained, Fleet, Loaded, Page};
use super::state::{State, Tab};
use super::update::update;

const NOW: u64 = 1_800_000_000_000;
const HOSTILE: &str = "\x1b[2J\x1b]0;owned\x07\u{202e}gnp.exe\u{9b}31m\u{200b}\0\r\u{2028}\u{fffd}<script>";

fn time(before_ms: u64) -> Option<prost_types::Timestamp> {
    Some(proto::convert::api::timestamp(::run::Timestamp(NOW - before_ms)))
}

fn call(tool: &str, state: v1::CallState) -> v1::CallSummary {
    let (call_id, pool) = ("call_0".to_owned(), "local".to_owned());
    v1::CallSummary { call_id, tool: tool.to_owned(), pool, state: state.into(), ..v1::CallSummary::default() }
}

fn listed(run_id: &str, tool: &str, state: v1::CallState) -> v1::ListedCall {
    let (run_id, call) = (run_id.to_owned(), Some(call(tool, state)));
    v1::ListedCall { run_id, create_time: time(4_000), call, ..v1::ListedCall::default() }
}

fn summary(run_id: &str, tool: &str, status: v1::RunStatus) -> v1::RunSummary {
    let calls = vec![call(tool, v1::CallState::Completed)];
    let (run_id, status) = (run_id.to_owned(), status.into());
    v1::RunSummary { run_id, status, create_time: time(12_000), calls, ..v1::RunSummary::default() }
}

fn counts(states: &[(v1::CallState, u64)]) -> v1::CountRunsResponse {
    let calls = states.iter().map(|(state, count)| v1::CallCount { state: (*state).into(), count: *count }).collect();
    let coverage = Some(v1::IndexCoverage { complete: true, ..v1::IndexCoverage::default() });
    v1::CountRunsResponse { calls, coverage, ..v1::CountRunsResponse::default() }
}

/// What a fleet with one worker returns for every page.
fn loaded() -> Loaded {
    let worker = v1::Worker {
        worker_id: "worker-1".to_owned(),
        pool: "local".to_owned(),
        slots: 16,
        pulling: true,
        ..v1::Worker::default()
    };
    Loaded {
        counts: counts(&[
            (v1::CallState::Running, 3),
            (v1::CallState::Queued, 1),
            (v1::CallState::AwaitingApproval, 1),
        ]),
        runs: Some(vec![
            summary("run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f", "bash", v1::RunStatus::InProgress),
            summary("run_0b_01980f3c2a5b7c3e8d4f5a6b00000002", "grep", v1::RunStatus::Completed),
        ]),
        inbox: Some(vec![listed("run_1", "bash", v1::CallState::AwaitingApproval)]),
        failed: Some(vec![listed("run_9", "fetch", v1::CallState::Failed)]),
        fleet: Some(Fleet {
            workers: vec![worker],
            pauses: Vec::new(),
            open: vec![listed("run_2", "bash", v1::CallState::Running), listed("run_3", "bash", v1::CallState::Queued)],
            is_forbidden: false,
        }),
    }
}

fn console() -> State {
    let mut state = State::new("http://127.0.0.1:7420".to_owned(), NOW);
    update(&mut state, Event::Loaded(Box::new(loaded())));
    state
}

fn press(state: &mut State, keys: &str) -> Vec<Effect> {
    let each = keys.chars().map(|letter| match letter {
        '\n' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        '\t' => KeyCode::Tab,
        '\x08' => KeyCode::Backspace,
        letter => KeyCode::Char(letter),
    });
    let keys: Vec<KeyCode> = each.collect();
    keys.into_iter().flat_map(|code| key(state, code)).collect()
}

fn key(state: &mut State, code: KeyCode) -> Vec<Effect> {
    update(state, Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn picture(state: &State, width: u16, height: u16, has_colors: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
    terminal.draw(|frame| draw(frame, state, Theme { has_colors })).expect("it draws");
    terminal
}

/// The rows of a terminal of the usual size, without the spaces at their ends.
fn screen(state: &State) -> Vec<String> {
    let terminal = picture(state, 80, 24, true);
    let buffer = terminal.backend().buffer();
    let row = |row: u16| (0..80).map(|column| buffer[(column, row)].symbol()).collect::<String>().trim_end().to_owned();
    (0..24).map(row).collect()
}

#[track_caller]
fn assert_shows(state: &State, text: &str) {
    let screen = screen(state);
    assert!(screen.iter().any(|row| row.contains(text)), "{text:?} is not on the screen:\n{}", screen.join("\n"));
}

fn event(sequence: u64, event: Said) -> v1::RunEvent {
    v1::RunEvent { sequence, time: time(0), event: Some(event) }
}

fn opened(tools: &[&str]) -> Said {
    let calls = tools.iter().zip(0..).map(|(tool, number)| v1::OpenedCall {
        call_id: format!("call_{number}"),
        tool: (*tool).to_owned(),
        ..v1::OpenedCall::default()
    });
    Said::RunOpened(v1::RunOpened { run_id: "run_1".to_owned(), calls: calls.collect(), deadline: None })
}

fn output(call: u32, attempt: u32, text: &str) -> Said {
    let piece = Some(v1::call_output::Piece::Content(v1::content::Body::Text(text.to_owned()).into()));
    Said::CallOutput(v1::CallOutput { call_id: format!("call_{call}"), attempt, piece, ..v1::CallOutput::default() })
}

fn ended(call: u32, state: v1::CallState, result: &str) -> Said {
    let result = vec![v1::content::Body::Text(result.to_owned()).into()];
    let outcome = Some(v1::CallOutcome { state: state.into(), result, ..v1::CallOutcome::default() });
    Said::CallEnded(v1::CallEnded { call_id: format!("call_{call}"), outcome, ..v1::CallEnded::default() })
}

/// A console that follows a run, and received these events.
fn following(events: Vec<Said>) -> State {
    let mut state = console();
    assert!(super::update::follow(&mut state, "run_1".to_owned()).contains(&Effect::Follow("run_1".to_owned())));
    receive(&mut state, 0, events);
    state
}

fn receive(state: &mut State, first: u64, events: Vec<Said>) {
    let events = events.into_iter().zip(first..).map(|(said, sequence)| event(sequence, said)).collect();
    update(state, Event::Output { run_id: "run_1".to_owned(), events });
}

fn explained(state: &mut State, of: v1::CallState, arguments: &str) {
    let (tool, arguments) = ("bash".to_owned(), arguments.to_owned());
    let call = v1::Call { call_id: "call_0".to_owned(), tool, arguments, state: of.into(), ..v1::Call::default() };
    let answer = Ok(v1::ExplainCallResponse { why: "awaiting approval".to_owned(), call: Some(call) });
    let explained = Explained { run_id: "run_1".to_owned(), call_id: "call_0".to_owned(), answer };
    update(state, Event::Explained(Box::new(explained)));
}

#[test]
fn the_overview_shows_what_runs_what_waits_and_for_how_long() {
    let mut state = console();
    assert_shows(&state, "running        3");
    assert_shows(&state, "waiting        1, the oldest 4 s");
    assert_shows(&state, "for people     1");
    assert_shows(&state, "1, 16 slots");
    assert_shows(&state, "fetch unspecified");
    assert_shows(&state, "http://127.0.0.1:7420 ●");
    // Ten calls ended within two seconds.
    update(&mut state, Event::Tick(NOW + 2_000));
    let counts = counts(&[(v1::CallState::Completed, 10)]);
    update(&mut state, Event::Loaded(Box::new(Loaded { counts, ..Loaded::default() })));
    assert_shows(&state, "5.0/s ended");
}

#[test]
fn a_page_is_loaded_once_a_second_and_not_while_it_is_being_loaded() {
    let mut state = console();
    let load = [Effect::Load(Page::Of(Tab::Overview, v1::RunStatus::Unspecified))];
    assert_eq!(update(&mut state, Event::Tick(NOW + 1_000)), load);
    assert_eq!(update(&mut state, Event::Tick(NOW + 2_000)), []);
    update(&mut state, Event::Loaded(Box::new(loaded())));
    assert_eq!(update(&mut state, Event::Tick(NOW + 3_000)), load);
}

#[test]
fn runs_are_filtered_as_the_filter_is_typed_and_enter_follows_one() {
    let mut state = console();
    press(&mut state, "2/grep");
    assert_shows(&state, "1 run, the newest first, with \"grep\"");
    assert_shows(&state, "run_0b_…00000002 completed");
    press(&mut state, "\n");
    let effects = press(&mut state, "\n");
    assert!(effects.contains(&Effect::Follow("run_0b_01980f3c2a5b7c3e8d4f5a6b00000002".to_owned())), "{effects:?}");
    let effects = press(&mut state, "\x1b");
    assert!(effects.contains(&Effect::Unfollow), "{effects:?}");
    press(&mut state, "/\x1b");
    assert_shows(&state, "2 runs, the newest first");
}

#[test]
fn escape_and_a_letter_that_come_together_are_both_keys() {
    let mut state = following(vec![opened(&["bash"])]);
    let effects = update(&mut state, Event::Key(KeyEvent::new(KeyCode::Char('3'), KeyModifiers::ALT)));
    assert!(effects.contains(&Effect::Unfollow), "{effects:?}");
    assert_shows(&state, "1 call for people");
}

#[test]
fn the_selected_run_stays_selected_when_newer_runs_arrive() {
    let mut state = console();
    press(&mut state, "2j");
    assert_eq!(state.selected_run().map(|run| run.calls[0].tool.as_str()), Some("grep"));
    let mut newer = loaded();
    newer.runs.get_or_insert_default().insert(0, summary("run_new", "ls", v1::RunStatus::InProgress));
    update(&mut state, Event::Loaded(Box::new(newer)));
    assert_eq!(state.selected_run().map(|run| run.calls[0].tool.as_str()), Some("grep"));
}

#[test]
fn the_output_of_a_run_is_shown_in_its_order_with_what_was_withdrawn() {
    let mut state = following(vec![
        opened(&["bash", "grep"]),
        Said::CallSpeaking(v1::CallSpeaking { call_id: "call_0".to_owned(), tool: "bash".to_owned() }),
        output(0, 1, "half a li"),
        Said::CallOutputWithdrawn(v1::CallOutputWithdrawn { call_id: "call_0".to_owned(), attempt: 1 }),
        output(0, 2, "a whole line\n"),
        ended(0, v1::CallState::Completed, "done"),
    ]);
    let screen = screen(&state);
    let rows = ["● bash · call_0", "↺ half a li", "the output above is void", "│ a whole line", "✓ "];
    let found =
        rows.map(|text| screen.iter().rposition(|row| row.contains(text)).unwrap_or_else(|| panic!("{screen:#?}")));
    assert!(found.is_sorted(), "{screen:#?}");
    assert_shows(&state, "completed");
    receive(
        &mut state,
        6,
        vec![Said::RunEnded(v1::RunEnded { status: v1::RunStatus::Completed.into(), ..Default::default() })],
    );
    assert_shows(&state, "✓ run completed");
}

#[test]
fn bytes_that_are_no_text_are_shown_by_their_values() {
    let bytes = v1::Data { media_type: "application/octet-stream".to_owned(), data: vec![0xff, 0x9b].into() };
    let piece = Some(v1::call_output::Piece::Content(v1::content::Body::Data(bytes).into()));
    let said = v1::CallOutput { call_id: "call_0".to_owned(), attempt: 1, piece, ..v1::CallOutput::default() };
    let state = following(vec![opened(&["bash"]), output(0, 1, "a "), Said::CallOutput(said), output(0, 1, " b\n")]);
    assert_shows(&state, r"│ a \xff\x9b b");
}

#[test]
fn an_event_that_comes_again_after_a_reconnection_is_shown_once() {
    let mut state = following(vec![opened(&["bash"]), output(0, 1, "one\n"), output(0, 1, "two\n")]);
    receive(&mut state, 1, vec![output(0, 1, "one\n"), output(0, 1, "two\n"), output(0, 1, "three\n")]);
    let said: Vec<&str> = state.run.as_ref().expect("a run").lines.all().map(|line| line.text.as_str()).collect();
    assert_eq!(said, ["run_1 · 1 call", "one", "two", "three"]);
}

#[test]
fn a_coordinator_that_goes_away_is_told_with_where_the_output_goes_on() {
    let mut state = following(vec![opened(&["bash"]), output(0, 1, "one\n")]);
    update(&mut state, Event::Lost("connection refused".to_owned()));
    update(&mut state, Event::Tick(NOW + 7_000));
    assert_shows(&state, "reconnecting for 7 s, the output goes on after event 1: connection refused");
    assert_shows(&state, "○");
    update(&mut state, Event::Loaded(Box::new(loaded())));
    assert_shows(&state, "connected again");
    assert_shows(&state, "●");
}

#[test]
fn output_stays_where_the_user_looks_and_follows_at_the_end() {
    let lines = (0..100).map(|number| format!("line {number}\n")).collect::<String>();
    let mut state = following(vec![opened(&["bash"]), output(0, 1, &lines)]);
    assert_shows(&state, "line 99");
    press(&mut state, "g");
    assert_shows(&state, "line 0");
    receive(&mut state, 2, vec![output(0, 1, "the newest\n")]);
    assert_shows(&state, "line 0");
    press(&mut state, "G");
    assert_shows(&state, "the newest");
    press(&mut state, "/line 42");
    assert_shows(&state, "line 42");
    assert!(!screen(&state).iter().any(|row| row.contains("line 99")));
}

#[test]
fn an_approval_shows_the_arguments_first_and_needs_a_yes() {
    let mut state = console();
    let effects = press(&mut state, "3");
    let (run_id, call_id) = ("run_1".to_owned(), "call_0".to_owned());
    assert!(effects.contains(&Effect::Explain { run_id: run_id.clone(), call_id: call_id.clone() }), "{effects:?}");
    assert_eq!(press(&mut state, "a"), []);
    assert_shows(&state, "the arguments of the call are not loaded yet");
    explained(&mut state, v1::CallState::AwaitingApproval, r#"{"command":"rm -rf build","n":1.10}"#);
    assert_shows(&state, r#""command": "rm -rf build","#);
    assert_shows(&state, r#""n": 1.10"#);
    press(&mut state, "a");
    assert_shows(&state, "approve the call call_0 with the arguments above? y/n");
    assert_eq!(press(&mut state, "n"), []);
    let approved = Action::Approve { run_id: run_id.clone(), call_id: call_id.clone(), arguments: None };
    assert_eq!(press(&mut state, "ay"), [Effect::Act(approved)]);
    assert_eq!(press(&mut state, "e\x08"), [], "the arguments are edited");
    assert_eq!(press(&mut state, "\n"), []);
    assert_shows(&state, "the arguments are no JSON object");
    let arguments = Some(r#"{"command":"rm -rf build","n":1.10}"#.to_owned());
    let edited = Action::Approve { run_id: run_id.clone(), call_id: call_id.clone(), arguments };
    assert_eq!(press(&mut state, "}\n"), [Effect::Act(edited)]);
    let rejected = Action::Reject { run_id, call_id, reason: "no".to_owned() };
    assert_eq!(press(&mut state, "nno\n"), [Effect::Act(rejected)]);
}

#[test]
fn a_question_is_answered_by_the_number_of_an_option() {
    let mut state = console();
    press(&mut state, "3");
    explained(&mut state, v1::CallState::WaitingForClient, r#"{"question":"Which?","options":["red","blue"]}"#);
    let action = press(&mut state, "a2\n");
    let (run_id, call_id) = ("run_1".to_owned(), "call_0".to_owned());
    assert_eq!(action, [Effect::Act(Action::Answer { run_id, call_id, text: "blue".to_owned() })]);
    press(&mut state, "a\n");
    assert_shows(&state, "the answer is empty");
}

#[test]
fn a_run_and_a_call_are_cancelled_after_a_yes_and_a_call_is_redriven() {
    let mut state = following(vec![opened(&["bash", "grep"])]);
    let (run_id, call_id) = ("run_1".to_owned(), "call_1".to_owned());
    assert_eq!(press(&mut state, "cn"), []);
    assert_eq!(press(&mut state, "cy"), [Effect::Act(Action::CancelRun { run_id: run_id.clone() })]);
    let cancelled = Action::CancelCall { run_id: run_id.clone(), call_id: call_id.clone() };
    assert_eq!(press(&mut state, "\txy"), [Effect::Act(cancelled)]);
    assert_eq!(press(&mut state, "ry"), [Effect::Act(Action::Redrive { run_id, call_id })]);
    let done = Done { text: "executed once more".to_owned(), run_id: Some("run_2".to_owned()) };
    let effects = update(&mut state, Event::Done(Ok(done)));
    assert!(effects.contains(&Effect::Follow("run_2".to_owned())), "{effects:?}");
    assert_shows(&state, "executed once more");
}

#[test]
fn a_pool_is_paused_with_a_reason_and_a_worker_is_drained() {
    let mut state = console();
    press(&mut state, "4");
    assert_shows(&state, "1 pool, 1 worker");
    assert_shows(&state, "takes calls");
    let pause = Action::Pause { pool: "local".to_owned(), reason: "a deploy".to_owned() };
    assert_eq!(press(&mut state, "pa deploy\n"), [Effect::Act(pause)]);
    let drain = Action::Drain { worker_id: "worker-1".to_owned() };
    assert_eq!(press(&mut state, "jdy"), [Effect::Act(drain)]);
    press(&mut state, "p");
    assert_shows(&state, "select a pool to pause it");
}

#[test]
fn a_user_who_may_not_see_workers_sees_everything_else() {
    let mut state = console();
    let open = loaded().fleet.unwrap_or_default().open;
    let fleet = Some(Fleet { open, is_forbidden: true, ..Fleet::default() });
    update(&mut state, Event::Loaded(Box::new(Loaded { fleet, ..loaded() })));
    assert_shows(&state, "only admins see workers");
    assert_shows(&state, "waiting        1, the oldest 4 s");
    assert!(!screen(&state).iter().any(|row| row.contains("no worker")), "it is not known");
}

#[test]
fn what_the_coordinator_refuses_is_shown() {
    let mut state = console();
    update(&mut state, Event::Done(Err("caller X lacks the role `approve`".to_owned())));
    assert_shows(&state, "caller X lacks the role `approve`");
    update(&mut state, Event::Tick(NOW + 60_000));
    assert!(!screen(&state).iter().any(|row| row.contains("lacks the role")));
}

/// States with hostile texts wherever the API has a text.
fn hostile() -> Vec<State> {
    let mut all = loaded();
    let summary = v1::RunSummary { tenant: HOSTILE.to_owned(), ..summary(HOSTILE, HOSTILE, v1::RunStatus::Failed) };
    all.runs = Some(vec![summary]);
    let mut listed = listed(HOSTILE, HOSTILE, v1::CallState::AwaitingApproval);
    listed.tenant = HOSTILE.to_owned();
    all.inbox = Some(vec![listed.clone()]);
    all.failed = Some(vec![listed]);
    let what = Some(v1::pause::What::Pool(HOSTILE.to_owned()));
    let (reason, by) = (HOSTILE.to_owned(), HOSTILE.to_owned());
    let pause = v1::Pause { what, reason, by, time: None };
    let worker_id = HOSTILE.to_owned();
    let worker =
        v1::Worker { worker_id, pool: HOSTILE.to_owned(), release: HOSTILE.to_owned(), ..v1::Worker::default() };
    all.fleet = Some(Fleet { workers: vec![worker], pauses: vec![pause], ..Fleet::default() });
    all.counts.tools = vec![v1::ToolCallCount { tool: HOSTILE.to_owned(), state: 0, count: 1 }];
    let mut state = State::new(HOSTILE.to_owned(), NOW);
    update(&mut state, Event::Loaded(Box::new(all)));
    let mut states = vec![state];
    let mut inbox = console();
    press(&mut inbox, "3");
    explained(&mut inbox, v1::CallState::AwaitingApproval, HOSTILE);
    states.push(inbox);
    let said = [HOSTILE, "\n", HOSTILE, "\u{202e}"].concat();
    let mut run = following(vec![opened(&[HOSTILE]), output(0, 1, &said), ended(0, v1::CallState::Failed, HOSTILE)]);
    update(&mut run, Event::Unreadable { run_id: "run_1".to_owned(), error: HOSTILE.to_owned() });
    update(&mut run, Event::Paste(HOSTILE.to_owned()));
    press(&mut run, "/");
    update(&mut run, Event::Paste(HOSTILE.to_owned()));
    states.push(run);
    let mut lost = console();
    update(&mut lost, Event::Lost(HOSTILE.to_owned()));
    states.push(lost);
    let mut notice = console();
    update(&mut notice, Event::Done(Err(HOSTILE.to_owned())));
    states.push(notice);
    states
}

#[test]
fn nothing_that_a_tool_or_a_client_wrote_reaches_the_terminal_as_a_command() {
    for mut state in hostile() {
        for keys in ["", "1", "2", "3", "4", "w", "?"] {
            press(&mut state, keys);
            for (width, height) in [(80, 24), (200, 60)] {
                let terminal = picture(&state, width, height, true);
                let cells = terminal.backend().buffer().content();
                let wrong = cells.iter().flat_map(|cell| cell.symbol().chars()).find(|letter| {
                    letter.is_control() || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
                });
                assert_eq!(wrong, None, "{:#?}", screen(&state));
            }
        }
    }
}

#[test]
fn without_colours_there_is_none() {
    for state in hostile() {
        let terminal = picture(&state, 80, 24, false);
        let cells = terminal.backend().buffer().content();
        assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
}

/// Every key in every state, in terminals of every size: nothing panics.
#[test]
fn no_key_and_no_size_breaks_it() {
    let keys = "1234?qjkgG hl/abcdefnoprswxJK0\n\x1b\t\x08é日";
    let keys: Vec<char> = keys.chars().collect();
    let mut states = hostile();
    states.push(State::new(String::new(), 0));
    let mut seed = 7_u64;
    for mut state in states {
        for step in 0..2_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let letter = keys[usize::try_from(seed >> 33).expect("it fits") % keys.len()];
            press(&mut state, &letter.to_string());
            if step % 10 == 0 {
                let (width, height) = (((seed >> 20) % 130) as u16, ((seed >> 40) % 50) as u16);
                update(&mut state, Event::Resize(height));
                picture(&state, width.max(1), height.max(1), true);
            }
        }
    }
}

#[test]
fn ten_megabytes_without_a_line_break_are_drawn_as_a_cut_line() {
    let state = following(vec![opened(&["bash"]), output(0, 1, &"x".repeat(10_000_000))]);
    let mut state = state;
    state.run.as_mut().expect("a run").left = super::lines::LINE_CHARS_MAX - 10;
    assert_shows(&state, "xxxxxxxxxx … and 9998000 characters more");
}
