//! Draws the state of the console. Nothing here changes it.

mod overview;
mod pages;
mod run;
mod theme;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::prompt::Prompt;
use super::state::{Details, Link, State, Tab};
pub(super) use run::output_rows;
pub(super) use theme::Theme;

use crate::words::{call_state, counted, duration, indented, visible};

/// The smallest terminal in which something can be shown.
const SMALLEST: (u16, u16) = (40, 10);
/// Characters of one line of a text from elsewhere.
const CHARS_MAX: usize = 400;
/// Lines of arguments that are shown.
const ARGUMENT_LINES_MAX: usize = 2_000;

const HELP: &str = "\
everywhere       ? help   q quit   Esc back
pages            1-4, Tab, Shift-Tab
lists            j k, arrows, PgUp PgDn, g G   / filter
runs             Enter follow   c cancel   s by status
a run            j k g G scroll   h l left, right   / filter
                 Tab select a call   f only its output
                 w why   a answer or approve   x cancel the call
                 r once more, if it is parked   c cancel the run
inbox            a, Enter answer or approve   e approve with
                 other arguments   n reject   w all of it
                 o open the run
workers          p pause or resume a pool   d drain a worker

Control characters of tools are shown as pictures, as ␛ for
escape; colours are left out, long lines are cut.";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame, state: &State, theme: Theme) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let (width, height) = SMALLEST;
        frame.render_widget(Paragraph::new(format!("too small: {width}x{height} at least")), area);
        return;
    }
    let rows = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1), Constraint::Length(1)];
    let [head, body, notice, foot] = Layout::vertical(rows).areas(area);
    draw_head(frame, head, state, theme);
    match (&state.run, state.tab) {
        (Some(run), _) => run::draw(frame, body, state, run, theme),
        (None, _) if !state.is_loaded => frame.render_widget(Paragraph::new("loading…"), body),
        (None, Tab::Overview) => overview::draw(frame, body, state, theme),
        (None, Tab::Runs) => pages::runs(frame, body, state, theme),
        (None, Tab::Inbox) => pages::inbox(frame, body, state, theme),
        (None, Tab::Fleet) => pages::fleet(frame, body, state, theme),
    }
    if state.is_explaining {
        draw_explanation(frame, body, state, theme);
    }
    if state.is_helping {
        popup(frame, body, " keys ", Text::raw(HELP), 0);
    }
    draw_notice(frame, notice, state, theme);
    match &state.prompt {
        Some(prompt) => draw_prompt(frame, foot, prompt, theme),
        None => frame.render_widget(Line::styled(hints(state), theme.dim()), foot),
    }
}

fn draw_head(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let mut spans = vec![Span::styled("Toolyard ", theme.bold())];
    for (tab, number) in Tab::ALL.into_iter().zip(1..) {
        let count = if tab == Tab::Inbox { state.data.for_people() } else { 0 };
        let count = if count == 0 { String::new() } else { format!(" {count}") };
        let style = match tab {
            tab if tab == state.tab => theme.selected(),
            Tab::Inbox if !count.is_empty() => theme.asking(),
            _ => theme.dim(),
        };
        spans.push(Span::styled(format!(" {number} {}{count} ", tab.title()), style));
    }
    let line = Line::from(spans);
    let used = u16::try_from(line.width()).unwrap_or(u16::MAX);
    frame.render_widget(line, area);
    let right = Rect { x: area.x + used.min(area.width), width: area.width.saturating_sub(used), ..area };
    let mark = match state.link {
        Link::Connected => Span::styled(" ●", theme.good()),
        Link::Lost { .. } => Span::styled(" ○", theme.bad()),
    };
    let url = Span::styled(visible(&state.url, CHARS_MAX), theme.dim());
    frame.render_widget(Line::from(vec![url, mark]).right_aligned(), right);
}

/// Why nothing is new, or the result of the last action.
fn draw_notice(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let line = match (&state.link, &state.notice) {
        (Link::Lost { since, reason }, _) => {
            let away = duration(std::time::Duration::from_secs(state.now.saturating_sub(*since) / 1000));
            let last = state.run.as_ref().filter(|run| !run.is_over).and_then(|run| run.last);
            let resumes = last.map_or_else(String::new, |last| format!(", the output goes on after event {last}"));
            let text = format!("reconnecting for {away}{resumes}: {reason}");
            Line::styled(visible(&text, CHARS_MAX), theme.bad())
        }
        (Link::Connected, Some(notice)) => {
            let style = if notice.is_error { theme.bad() } else { theme.good() };
            Line::styled(visible(&notice.text, CHARS_MAX), style)
        }
        (Link::Connected, None) => Line::default(),
    };
    frame.render_widget(line, area);
}

fn draw_prompt(frame: &mut Frame, area: Rect, prompt: &Prompt, theme: Theme) {
    let label = visible(&prompt.label(), CHARS_MAX);
    let before: String = prompt.text.chars().take(prompt.cursor).collect();
    let (label, before) = (Span::styled(label, theme.asking()), Span::raw(visible(&before, usize::MAX)));
    let after: String = prompt.text.chars().skip(prompt.cursor).collect();
    let after = Span::raw(visible(&after, usize::MAX));
    let room = usize::from(area.width).saturating_sub(1);
    let cursor = label.width() + before.width();
    // The line moves left as far as the cursor needs.
    let hidden = u16::try_from(cursor.saturating_sub(room)).unwrap_or(u16::MAX);
    let at = u16::try_from(cursor.min(room)).unwrap_or(0);
    frame.render_widget(Paragraph::new(Line::from(vec![label, before, after])).scroll((0, hidden)), area);
    frame.set_cursor_position((area.x + at, area.y));
}

/// The keys that matter on this page.
fn hints(state: &State) -> &'static str {
    match (state.is_explaining, &state.run, state.tab) {
        (true, ..) => "a answer, approve  e edit  n reject  x cancel  r once more  j k scroll  Esc",
        (false, Some(_), _) => "j k scroll  Tab call  w why  a decide  x cancel it  c cancel run  / filter  Esc",
        (false, None, Tab::Overview) => "1-4 pages  ? help  q quit",
        (false, None, Tab::Runs) => "j k select  Enter follow  / filter  s status  c cancel  ? help  q quit",
        (false, None, Tab::Inbox) => "j k select  a answer, approve  e edit  n reject  w all  o run  ? help  q quit",
        (false, None, Tab::Fleet) => "j k select  p pause, resume  d drain  / filter  ? help  q quit",
    }
}

fn draw_explanation(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let text = match &state.details {
        Some(details) => explanation(details, theme),
        None => Text::raw("loading…"),
    };
    popup(frame, area, " why ", text, state.details_top);
}

/// A call with its arguments and the reason for its state.
fn explanation<'a>(details: &Details, theme: Theme) -> Text<'a> {
    let call = &details.call;
    let who = visible(&format!("{} · {}", call.tool, details.call_id), CHARS_MAX);
    let state = Span::styled(call_state(call.state()), theme.call(call.state()));
    let mut lines = vec![Line::from(vec![Span::styled(who, theme.bold()), Span::raw(" · "), state])];
    lines.extend(details.why.lines().map(|line| Line::raw(visible(line, CHARS_MAX))));
    for failed in &call.failed_attempts {
        let why = failed.error.as_ref().map(crate::words::error).unwrap_or_default();
        lines.push(Line::styled(visible(&format!("attempt {}: {why}", failed.attempt), CHARS_MAX), theme.bad()));
    }
    let run = format!("{} · {}", details.run_id, counted(call.attempts as usize, "attempt"));
    lines.push(Line::styled(visible(&run, CHARS_MAX), theme.dim()));
    lines.push(Line::styled("arguments", theme.dim()));
    let arguments = indented(&call.arguments);
    let all = arguments.lines().count();
    // Whole lines, because a person decides about what is shown here.
    lines.extend(arguments.lines().take(ARGUMENT_LINES_MAX).map(|line| Line::raw(visible(line, usize::MAX))));
    if all > ARGUMENT_LINES_MAX {
        let more = format!(
            "{} more lines: toolyard why {} {} -o json",
            all - ARGUMENT_LINES_MAX,
            details.run_id,
            details.call_id
        );
        lines.push(Line::styled(visible(&more, CHARS_MAX), theme.bad()));
    }
    Text::from(lines)
}

fn popup(frame: &mut Frame, area: Rect, title: &str, text: Text, top: u16) {
    let wanted = u16::try_from(text.width().max(40) + 4).unwrap_or(u16::MAX);
    let area = area.centered_horizontally(Constraint::Length(wanted.min(area.width)));
    let paragraph = Paragraph::new(text).wrap(Wrap { trim: false }).scroll((top, 0));
    frame.render_widget(Clear, area);
    frame.render_widget(paragraph.block(Block::bordered().title(title.to_owned())), area);
}
