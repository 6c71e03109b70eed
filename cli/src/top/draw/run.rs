//! A run that is followed: its calls, and its ordered output.

use proto::v1;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::{CHARS_MAX, Theme};
use crate::top::lines::{Kind, Line as Said};
use crate::top::state::State;
use crate::top::stream::{Followed, Scroll};
use crate::words::{brief, call_state, counted, duration, run_status, visible};

/// Rows of the screen beside the calls and the output: head, title, divider, notice and foot.
const OTHER_ROWS: u16 = 5;
/// The calls take at most this part of the screen.
const CALLS_SHARE: u16 = 4;

/// Rows of the calls.
fn call_rows(run: &Followed, height: u16) -> u16 {
    let calls = u16::try_from(run.tally.calls.len()).unwrap_or(u16::MAX);
    calls.min((height / CALLS_SHARE).max(2))
}

/// Rows of the output of the run that is shown.
pub(in crate::top) fn output_rows(state: &State) -> usize {
    let calls = state.run.as_ref().map_or(0, |run| call_rows(run, state.height));
    usize::from(state.height.saturating_sub(OTHER_ROWS + calls))
}

pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, run: &Followed, theme: Theme) {
    let calls = call_rows(run, state.height);
    let rows = [Constraint::Length(1), Constraint::Length(calls), Constraint::Length(1), Constraint::Min(0)];
    let [title, above, divider, below] = Layout::vertical(rows).areas(area);
    frame.render_widget(head(run, theme), title);
    draw_calls(frame, above, run, theme);
    let lines = run.shown();
    let rows = usize::from(below.height);
    let last = lines.len().saturating_sub(rows);
    let from = match run.scroll {
        Scroll::Tail => last,
        Scroll::From(at) => at.min(last),
    };
    frame.render_widget(Line::styled(divided(run, lines.len(), from), theme.dim()), divider);
    let lines = lines.into_iter().skip(from).take(rows).map(|line| drawn(line, run.left, theme));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), below);
}

fn head<'a>(run: &Followed, theme: Theme) -> Line<'a> {
    let mut spans = vec![Span::styled(visible(run.run_id(), CHARS_MAX), theme.bold())];
    let mut add = |text: String, style| {
        spans.push(Span::raw(" · "));
        spans.push(Span::styled(visible(&text, CHARS_MAX), style));
    };
    if run.status != v1::RunStatus::Unspecified {
        add(run_status(run.status), theme.run(run.status));
    }
    add(counted(run.tally.calls.len(), "call"), theme.dim());
    if let Some(took) = run.tally.took() {
        add(duration(took), theme.dim());
    } else if let Some(last) = run.last {
        add(format!("event {last}"), theme.dim());
    }
    if let Some(error) = &run.error {
        add(error.clone(), theme.bad());
    }
    Line::from(spans)
}

fn draw_calls(frame: &mut Frame, area: Rect, run: &Followed, theme: Theme) {
    let rows = usize::from(area.height);
    // The selected call stays on the screen.
    let from = run.selected.saturating_sub(rows.saturating_sub(1));
    let calls = run.tally.calls.iter().zip(&run.phases).enumerate().skip(from).take(rows);
    let lines = calls.map(|(index, (call, phase))| {
        let who = visible(&format!("{} · {}", call.tool, call.id), 40);
        let mut stands = if phase.is_cancelling { "being cancelled".to_owned() } else { call_state(phase.state) };
        if phase.state == v1::CallState::Running && !phase.worker_id.is_empty() {
            stands.push_str(&format!(" on {}", phase.worker_id));
        }
        if phase.attempt > 1 {
            stands.push_str(&format!(", attempt {}", phase.attempt));
        }
        if let Some(took) = call.took() {
            stands.push_str(&format!(", {}", duration(took)));
        }
        if let Some(arguments) = &phase.approval {
            stands.push_str(&format!(": {}", brief(arguments)));
        }
        let spans = vec![
            Span::styled("● ", theme.hue(index)),
            Span::raw(format!("{who:32} ")),
            Span::styled(visible(&stands, CHARS_MAX), theme.call(phase.state)),
        ];
        let line = Line::from(spans);
        if index == run.selected { line.patch_style(theme.selected()) } else { line }
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}

/// The line above the output: what is shown of it.
fn divided(run: &Followed, lines: usize, from: usize) -> String {
    let mut text = format!("── output, {}", counted(lines, "line"));
    if run.lines.gone > 0 {
        text.push_str(&format!(", {} older ones have left", run.lines.gone));
    }
    if from > 0 {
        text.push_str(&format!(", {from} above"));
    }
    if matches!(run.scroll, Scroll::From(_)) {
        text.push_str(", G follows");
    }
    if run.only_selected {
        text.push_str(", of one call");
    }
    if run.left > 0 {
        text.push_str(&format!(", from column {}", run.left + 1));
    }
    if !run.filter.is_empty() {
        text.push_str(&format!(", with {:?}", visible(&run.filter, CHARS_MAX)));
    }
    text.push_str(" ──");
    text
}

fn drawn<'a>(line: &Said, left: usize, theme: Theme) -> Line<'a> {
    let hue = theme.hue(line.call.unwrap_or_default());
    let (mark, mark_style, style) = match line.kind {
        _ if line.is_void => ("↺ ", theme.dim(), theme.void()),
        Kind::Head => ("● ", hue, theme.bold()),
        Kind::Output => ("│ ", hue, ratatui::style::Style::new()),
        Kind::Stderr => ("! ", theme.bad(), ratatui::style::Style::new()),
        Kind::Progress => ("│ ", hue, theme.dim()),
        Kind::Note => ("· ", theme.dim(), theme.dim()),
        Kind::Good => ("", theme.good(), theme.good()),
        Kind::Bad => ("", theme.bad(), theme.bad()),
    };
    let text: String = line.text.chars().skip(left).collect();
    let mut spans = vec![Span::styled(mark, mark_style), Span::styled(text, style)];
    if line.cut > 0 {
        spans.push(Span::styled(format!(" … and {} characters more", line.cut), theme.dim()));
    }
    Line::from(spans)
}
