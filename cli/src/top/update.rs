//! How events change the state of the console, and what is to be done then. Pure: nothing here reads a clock, writes or
//! waits.

use super::effect::{Effect, Event, Explained, Fleet, Loaded, Page};
use super::keys;
use super::state::{Details, Link, State, Tab};
use super::stream::{Followed, Scroll};

pub(super) fn update(state: &mut State, event: Event) -> Vec<Effect> {
    match event {
        Event::Key(key) => keys::pressed(state, key),
        Event::Paste(text) => {
            keys::pasted(state, &text);
            Vec::new()
        }
        Event::Resize(height) => {
            state.height = height;
            Vec::new()
        }
        Event::Tick(now) => {
            state.at(now);
            if state.is_loading { Vec::new() } else { reload(state) }
        }
        Event::Loaded(loaded) => loaded_page(state, *loaded),
        Event::Lost(reason) => {
            state.is_loading = false;
            let since = match &state.link {
                Link::Lost { since, .. } => *since,
                Link::Connected => state.now,
            };
            state.link = Link::Lost { since, reason };
            Vec::new()
        }
        Event::Refused(reason) => {
            state.is_loading = false;
            connected(state);
            state.complain(reason);
            Vec::new()
        }
        Event::Output { run_id, events } => {
            if let Some(run) = state.run.as_mut().filter(|run| run.run_id() == run_id) {
                take(run, &events);
            }
            Vec::new()
        }
        Event::Over { run_id } => {
            if let Some(run) = state.run.as_mut().filter(|run| run.run_id() == run_id) {
                run.is_over = true;
            }
            Vec::new()
        }
        Event::Unreadable { run_id, error } => {
            if let Some(run) = state.run.as_mut().filter(|run| run.run_id() == run_id) {
                run.error = Some(error);
            }
            Vec::new()
        }
        Event::Explained(explained) => {
            explained_call(state, *explained);
            Vec::new()
        }
        Event::Done(done) => match done {
            Ok(done) => {
                state.say(done.text);
                let mut effects = done.run_id.map(|run_id| follow(state, run_id)).unwrap_or_default();
                effects.extend(explain_again(state));
                effects.extend(reload(state));
                effects
            }
            Err(reason) => {
                state.complain(reason);
                Vec::new()
            }
        },
    }
}

/// Loads the page again.
pub(super) fn reload(state: &mut State) -> Vec<Effect> {
    state.is_loading = true;
    let page = if state.run.is_some() { Page::Counts } else { Page::Of(state.tab, state.status) };
    vec![Effect::Load(page)]
}

/// Shows a run over the page.
pub(super) fn follow(state: &mut State, run_id: String) -> Vec<Effect> {
    state.run = Some(Followed::new(run_id.clone()));
    state.is_explaining = false;
    vec![Effect::Follow(run_id)]
}

/// Explains the selected call of the inbox, unless it is explained already.
pub(super) fn explain_selected(state: &mut State) -> Vec<Effect> {
    if state.tab != Tab::Inbox || state.run.is_some() {
        return Vec::new();
    }
    let Some(listed) = state.selected_call() else { return Vec::new() };
    let (run_id, call_id) = (listed.run_id.clone(), listed.call.clone().unwrap_or_default().call_id);
    if state.details.as_ref().is_some_and(|details| details.run_id == run_id && details.call_id == call_id) {
        return Vec::new();
    }
    state.details = None;
    vec![Effect::Explain { run_id, call_id }]
}

/// Explains once more what is shown, because an action may have changed it.
fn explain_again(state: &State) -> Option<Effect> {
    let details = state.details.as_ref()?;
    Some(Effect::Explain { run_id: details.run_id.clone(), call_id: details.call_id.clone() })
}

fn connected(state: &mut State) {
    if state.link != Link::Connected {
        state.link = Link::Connected;
        state.say("connected again");
    }
}

fn loaded_page(state: &mut State, loaded: Loaded) -> Vec<Effect> {
    let Loaded { counts, runs, inbox, failed, fleet } = loaded;
    state.is_loading = false;
    state.is_loaded = true;
    connected(state);
    let data = &mut state.data;
    data.counts = counts;
    data.runs = runs.unwrap_or_else(|| std::mem::take(&mut data.runs));
    data.inbox = inbox.unwrap_or_else(|| std::mem::take(&mut data.inbox));
    data.failed = failed.unwrap_or_else(|| std::mem::take(&mut data.failed));
    if let Some(Fleet { workers, pauses, open, is_forbidden }) = fleet {
        (data.workers, data.pauses, data.open) = (workers, pauses, open);
        data.is_forbidden = is_forbidden;
    }
    state.sample();
    let effects = explain_selected(state);
    let is_shown = state.is_explaining || (state.tab == Tab::Inbox && state.run.is_none());
    // What is shown about a call grows old: how long it waits, and whether somebody decided meanwhile.
    if effects.is_empty() && is_shown { explain_again(state).into_iter().collect() } else { effects }
}

fn explained_call(state: &mut State, explained: Explained) {
    let Explained { run_id, call_id, answer } = explained;
    match answer {
        Ok(answer) => {
            let call = answer.call.unwrap_or_default();
            state.details = Some(Details { run_id, call_id, why: answer.why, call });
        }
        Err(reason) => {
            state.is_explaining = false;
            state.complain(reason);
        }
    }
}

/// Takes events in. The lines on the screen stay where they are when older ones leave.
fn take(run: &mut Followed, events: &[proto::v1::RunEvent]) {
    let gone = run.lines.gone;
    events.iter().for_each(|event| run.take(event));
    let left = usize::try_from(run.lines.gone - gone).unwrap_or(usize::MAX);
    if let Scroll::From(at) = run.scroll {
        run.scroll = Scroll::From(at.saturating_sub(left));
    }
}
