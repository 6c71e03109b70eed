//! What each key does.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use proto::v1;

use super::effect::{Action, Effect};
use super::prompt::{Prompt, Purpose, question};
use super::state::{FleetRow, State, Tab};
use super::stream::Scroll;
use super::update::{explain_selected, follow, reload};
use crate::words::call_state;

/// Rows of the screen that are no rows of a list: the head, the columns' names, and two lines at the foot.
const FRAME_ROWS: u16 = 4;
/// Columns that one key moves the output by.
const COLUMNS: usize = 8;

/// The statuses by which runs are listed, in the order in which a key goes through them.
const STATUSES: [v1::RunStatus; 7] = [
    v1::RunStatus::Unspecified,
    v1::RunStatus::InProgress,
    v1::RunStatus::RequiresAction,
    v1::RunStatus::Failed,
    v1::RunStatus::Completed,
    v1::RunStatus::Cancelled,
    v1::RunStatus::Expired,
];

/// A step through rows.
#[derive(Debug, Clone, Copy)]
enum Step {
    By(isize),
    First,
    Last,
}

pub(super) fn pressed(state: &mut State, key: KeyEvent) -> Vec<Effect> {
    if key.kind == KeyEventKind::Release {
        return Vec::new();
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
        return vec![Effect::Quit];
    }
    // A terminal sends Esc and a letter as it sends Alt and the letter, if they come together.
    if let (true, KeyCode::Char(_)) = (key.modifiers.contains(KeyModifiers::ALT), key.code) {
        let mut effects = pressed(state, KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
        effects.extend(pressed(state, KeyEvent::new(key.code, key.modifiers - KeyModifiers::ALT)));
        return effects;
    }
    if let Some(prompt) = state.prompt.take() {
        return typed(state, prompt, key);
    }
    if std::mem::take(&mut state.is_helping) {
        return Vec::new();
    }
    match key.code {
        KeyCode::Char('?') => {
            state.is_helping = true;
            Vec::new()
        }
        KeyCode::Char('q') => vec![Effect::Quit],
        _ if state.is_explaining => explained(state, key.code),
        _ if state.run.is_some() => in_run(state, key.code),
        KeyCode::Char(digit @ '1'..='4') => open(state, Tab::ALL[digit as usize - '1' as usize]),
        KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => turn(state, 1),
        KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => turn(state, Tab::ALL.len() - 1),
        code => in_list(state, code),
    }
}

fn turn(state: &mut State, pages: usize) -> Vec<Effect> {
    let tab = state.tab.further(pages);
    open(state, tab)
}

fn open(state: &mut State, tab: Tab) -> Vec<Effect> {
    state.tab = tab;
    let mut effects = reload(state);
    effects.extend(explain_selected(state));
    effects
}

fn step(code: KeyCode, page: isize) -> Option<Step> {
    Some(match code {
        KeyCode::Down | KeyCode::Char('j') => Step::By(1),
        KeyCode::Up | KeyCode::Char('k') => Step::By(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => Step::By(page),
        KeyCode::PageUp | KeyCode::Char('b') => Step::By(-page),
        KeyCode::Home | KeyCode::Char('g') => Step::First,
        KeyCode::End | KeyCode::Char('G') => Step::Last,
        _ => return None,
    })
}

fn in_list(state: &mut State, code: KeyCode) -> Vec<Effect> {
    let page = isize::try_from(state.height.saturating_sub(FRAME_ROWS).max(1)).unwrap_or(1);
    if let Some(step) = step(code, page) {
        let to = match step {
            Step::By(rows) => state.position().saturating_add_signed(rows),
            Step::First => 0,
            Step::Last => usize::MAX,
        };
        state.select(to);
        return explain_selected(state);
    }
    match (state.tab, code) {
        (Tab::Overview, _) => Vec::new(),
        (_, KeyCode::Char('/')) => {
            let filter = state.filter().to_owned();
            ask(state, Purpose::Filter, filter)
        }
        (_, KeyCode::Esc) => {
            state.filters[state.tab as usize].clear();
            explain_selected(state)
        }
        (Tab::Runs, code) => in_runs(state, code),
        (Tab::Inbox, KeyCode::Char('o')) => match state.selected_call().map(|listed| listed.run_id.clone()) {
            Some(run_id) => followed(state, run_id),
            None => Vec::new(),
        },
        (Tab::Inbox, KeyCode::Char('w')) => {
            explain(state);
            Vec::new()
        }
        (Tab::Inbox, KeyCode::Enter) => decide(state, KeyCode::Char('a')),
        (Tab::Inbox, code) => decide(state, code),
        (Tab::Fleet, code) => in_fleet(state, code),
    }
}

fn in_runs(state: &mut State, code: KeyCode) -> Vec<Effect> {
    if code == KeyCode::Char('s') {
        let at = STATUSES.iter().position(|status| *status == state.status).unwrap_or_default();
        state.status = STATUSES[(at + 1) % STATUSES.len()];
        return reload(state);
    }
    let Some(run_id) = state.selected_run().map(|run| run.run_id.clone()) else { return Vec::new() };
    match code {
        KeyCode::Enter => followed(state, run_id),
        KeyCode::Char('c') => ask(state, Purpose::Confirm(Action::CancelRun { run_id }), ""),
        _ => Vec::new(),
    }
}

fn in_fleet(state: &mut State, code: KeyCode) -> Vec<Effect> {
    match (state.selected_row(), code) {
        (Some(FleetRow::Pool(pool)), KeyCode::Char('p')) if pool.pause.is_some() => {
            ask(state, Purpose::Confirm(Action::Resume { pool: pool.name }), "")
        }
        (Some(FleetRow::Pool(pool)), KeyCode::Char('p')) => ask(state, Purpose::Pause { pool: pool.name }, ""),
        (Some(FleetRow::Worker(worker)), KeyCode::Char('d')) => {
            ask(state, Purpose::Confirm(Action::Drain { worker_id: worker.worker_id }), "")
        }
        (Some(FleetRow::Worker(_)), KeyCode::Char('p')) => complain(state, "select a pool to pause it"),
        (Some(FleetRow::Pool(_)), KeyCode::Char('d')) => complain(state, "select a worker to drain it"),
        _ => Vec::new(),
    }
}

fn followed(state: &mut State, run_id: String) -> Vec<Effect> {
    let mut effects = follow(state, run_id);
    effects.extend(reload(state));
    effects
}

fn complain(state: &mut State, text: &str) -> Vec<Effect> {
    state.complain(text);
    Vec::new()
}

fn ask(state: &mut State, purpose: Purpose, text: impl Into<String>) -> Vec<Effect> {
    state.prompt = Some(Prompt::new(purpose, text));
    Vec::new()
}

/// Keys while a run is shown.
fn in_run(state: &mut State, code: KeyCode) -> Vec<Effect> {
    let rows = super::draw::output_rows(state);
    let page = isize::try_from(rows.max(1)).unwrap_or(1);
    let Some(run) = &mut state.run else { return Vec::new() };
    if let Some(step) = step(code, page) {
        let last = run.shown().len().saturating_sub(rows);
        let from = match run.scroll {
            Scroll::Tail => last,
            Scroll::From(at) => at.min(last),
        };
        let to = match step {
            Step::By(lines) => from.saturating_add_signed(lines),
            Step::First => 0,
            Step::Last => last,
        };
        run.scroll = if to >= last { Scroll::Tail } else { Scroll::From(to) };
        return Vec::new();
    }
    let calls = run.tally.calls.len().max(1);
    match code {
        KeyCode::Tab | KeyCode::Char('J') => run.selected = (run.selected + 1) % calls,
        KeyCode::BackTab | KeyCode::Char('K') => run.selected = (run.selected + calls - 1) % calls,
        KeyCode::Right | KeyCode::Char('l') => run.left += COLUMNS,
        KeyCode::Left | KeyCode::Char('h') => run.left = run.left.saturating_sub(COLUMNS),
        KeyCode::Char('f') => run.only_selected = !run.only_selected,
        KeyCode::Char('/') => {
            let filter = run.filter.clone();
            return ask(state, Purpose::Filter, filter);
        }
        KeyCode::Esc if !run.filter.is_empty() => run.filter.clear(),
        KeyCode::Esc => {
            state.run = None;
            state.details = None;
            let mut effects = vec![Effect::Unfollow];
            effects.extend(reload(state));
            return effects;
        }
        code => return on_selected(state, code),
    }
    Vec::new()
}

/// Keys for the run that is shown, and for its selected call.
fn on_selected(state: &mut State, code: KeyCode) -> Vec<Effect> {
    let Some(run) = &state.run else { return Vec::new() };
    let run_id = run.run_id().to_owned();
    if code == KeyCode::Char('c') {
        return ask(state, Purpose::Confirm(Action::CancelRun { run_id }), "");
    }
    let Some(call_id) = run.selected_call().map(|(id, _)| id.to_owned()) else { return Vec::new() };
    match code {
        KeyCode::Char('x') => ask(state, Purpose::Confirm(Action::CancelCall { run_id, call_id }), ""),
        KeyCode::Char('r') => ask(state, Purpose::Confirm(Action::Redrive { run_id, call_id }), ""),
        // A decision needs the arguments, so they are shown first.
        KeyCode::Char('w' | 'a' | 'e' | 'n') | KeyCode::Enter => {
            state.details = None;
            explain(state);
            vec![Effect::Explain { run_id, call_id }]
        }
        _ => Vec::new(),
    }
}

/// Shows the explanation from its beginning.
fn explain(state: &mut State) {
    state.is_explaining = true;
    state.details_top = 0;
}

/// Keys while a call is explained over everything else.
fn explained(state: &mut State, code: KeyCode) -> Vec<Effect> {
    let page = state.height.saturating_sub(FRAME_ROWS).max(1);
    match step(code, isize::try_from(page).unwrap_or(1)) {
        Some(Step::By(lines)) => {
            let lines = i16::try_from(lines).unwrap_or(0);
            state.details_top = state.details_top.saturating_add_signed(lines);
            return Vec::new();
        }
        Some(Step::First) => state.details_top = 0,
        Some(Step::Last) | None => {}
    }
    match code {
        KeyCode::Esc | KeyCode::Enter | KeyCode::Char('w') => {
            state.is_explaining = false;
            Vec::new()
        }
        code => decide(state, code),
    }
}

/// Keys that decide about the call that is explained.
fn decide(state: &mut State, code: KeyCode) -> Vec<Effect> {
    if !matches!(code, KeyCode::Char('a' | 'e' | 'n' | 'x' | 'r')) {
        return Vec::new();
    }
    let Some(details) = &state.details else { return complain(state, "the arguments of the call are not loaded yet") };
    let (run_id, call_id) = (details.run_id.clone(), details.call_id.clone());
    let call_is = details.call.state();
    match (code, call_is) {
        (KeyCode::Char('x'), _) => ask(state, Purpose::Confirm(Action::CancelCall { run_id, call_id }), ""),
        (KeyCode::Char('r'), _) => ask(state, Purpose::Confirm(Action::Redrive { run_id, call_id }), ""),
        (KeyCode::Char('a'), v1::CallState::AwaitingApproval) => {
            ask(state, Purpose::Confirm(Action::Approve { run_id, call_id, arguments: None }), "")
        }
        (KeyCode::Char('e'), v1::CallState::AwaitingApproval) => {
            let arguments = details.call.arguments.clone();
            ask(state, Purpose::Arguments { run_id, call_id }, arguments)
        }
        (KeyCode::Char('n'), v1::CallState::AwaitingApproval) => ask(state, Purpose::Reject { run_id, call_id }, ""),
        (KeyCode::Char('a'), v1::CallState::WaitingForClient) => {
            let question = question(&details.call);
            ask(state, Purpose::Answer { run_id, question }, "")
        }
        (_, is) => complain(state, &format!("the call is {}: there is nothing to decide that way", call_state(is))),
    }
}

/// Text that the terminal pasted, which does nothing but to be typed.
pub(super) fn pasted(state: &mut State, text: &str) {
    let Some(prompt) = &mut state.prompt else { return };
    if matches!(prompt.purpose, Purpose::Confirm(_)) {
        return;
    }
    prompt.insert(text);
    if prompt.purpose == Purpose::Filter {
        let filter = prompt.text.clone();
        set_filter(state, filter);
    }
}

/// A key while a line is typed.
fn typed(state: &mut State, mut prompt: Prompt, key: KeyEvent) -> Vec<Effect> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Esc => {
            if prompt.purpose == Purpose::Filter {
                set_filter(state, String::new());
            }
            return Vec::new();
        }
        KeyCode::Enter => return entered(state, prompt),
        KeyCode::Char('u') if is_control => prompt.clear(),
        KeyCode::Char('a') if is_control => prompt.home(),
        KeyCode::Char('e') if is_control => prompt.end(),
        KeyCode::Char(_) if is_control => {}
        // A confirmation is one key.
        KeyCode::Char(letter) if matches!(prompt.purpose, Purpose::Confirm(_)) => {
            prompt.text = letter.to_string();
            return entered(state, prompt);
        }
        KeyCode::Char(letter) => prompt.insert(letter.encode_utf8(&mut [0; 4])),
        KeyCode::Backspace => prompt.back(),
        KeyCode::Delete => prompt.delete(),
        KeyCode::Left => prompt.left(),
        KeyCode::Right => prompt.right(),
        KeyCode::Home => prompt.home(),
        KeyCode::End => prompt.end(),
        _ => {}
    }
    if prompt.purpose == Purpose::Filter {
        set_filter(state, prompt.text.clone());
    }
    state.prompt = Some(prompt);
    Vec::new()
}

fn set_filter(state: &mut State, filter: String) {
    match &mut state.run {
        Some(run) => run.filter = filter,
        None => state.filters[state.tab as usize] = filter,
    }
}

fn entered(state: &mut State, prompt: Prompt) -> Vec<Effect> {
    match prompt.action() {
        Ok(Some(action)) => vec![Effect::Act(action)],
        Ok(None) => explain_selected(state),
        Err(reason) => {
            state.complain(reason);
            state.prompt = Some(prompt);
            Vec::new()
        }
    }
}
