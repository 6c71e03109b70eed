//! The page with the state of the whole fleet.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::v1;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Sparkline};

use super::pages::since;
use super::{CHARS_MAX, Theme};
use crate::top::state::{State, WAITING, millis};
use crate::words::{brief, counted, duration, error_kind, short_id, visible};

/// Rows of the numbers at the top.
const NUMBERS_ROWS: u16 = 8;
/// Columns of the names of the numbers.
const NAME_WIDTH: usize = 15;

pub(super) fn draw(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let [top, bottom] = Layout::vertical([Constraint::Length(NUMBERS_ROWS), Constraint::Min(0)]).areas(area);
    let halves = || Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]);
    let [calls, fleet] = halves().areas(top);
    let [tools, failed] = halves().areas(bottom);
    draw_calls(frame, calls, state, theme);
    draw_fleet(frame, fleet, state, theme);
    draw_tools(frame, tools, state, theme);
    draw_failed(frame, failed, state, theme);
}

/// The area below a title.
fn titled(frame: &mut Frame, area: Rect, title: &str, theme: Theme) -> Rect {
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(theme.dim())
        .title(Span::styled(title.to_owned(), theme.bold()));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    // A column between the two halves.
    Rect { width: inner.width.saturating_sub(1), ..inner }
}

fn number<'a>(name: &str, value: String, theme: Theme) -> Line<'a> {
    Line::from(vec![Span::styled(format!("{name:NAME_WIDTH$}"), theme.dim()), Span::raw(value)])
}

fn draw_calls(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let area = titled(frame, area, "calls ", theme);
    let data = &state.data;
    let waiting = data.calls_in(&WAITING);
    let oldest = state.pools().into_iter().filter_map(|pool| pool.oldest).min();
    let oldest = oldest.map_or_else(String::new, |at| format!(", the oldest {}", since(state, Some(at))));
    let rates = state
        .rates()
        .map_or_else(|| "…".to_owned(), |rates| format!("{:.1}/s in, {:.1}/s ended", rates.accepted, rates.ended));
    let people = data.for_people();
    let mut lines = vec![
        number("running", data.calls_in(&[v1::CallState::Running]).to_string(), theme),
        number("waiting", format!("{waiting}{oldest}"), theme),
        number("for people", people.to_string(), theme),
        number("rates", rates, theme),
        number("failed", data.calls_in(&[v1::CallState::Failed]).to_string(), theme),
    ];
    if people > 0 {
        lines[2] = lines[2].clone().patch_style(theme.asking());
    }
    let rows = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    frame.render_widget(Paragraph::new(lines), area);
    let graph = Rect { y: area.y + rows, height: area.height.saturating_sub(rows), ..area };
    let ended = state.ended_by_second();
    let newest = ended.len().saturating_sub(usize::from(graph.width));
    frame.render_widget(Sparkline::default().data(&ended[newest..]).style(theme.good()), graph);
}

fn draw_fleet(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let area = titled(frame, area, "workers ", theme);
    let workers = &state.data.workers;
    let slots: u32 = workers.iter().map(|worker| worker.slots).sum();
    let draining = workers.iter().filter(|worker| worker.draining).count();
    let draining = if draining == 0 { String::new() } else { format!(", {draining} draining") };
    let mut lines =
        vec![number("live", format!("{}, {}{draining}", workers.len(), counted(slots as usize, "slot")), theme)];
    if state.data.is_forbidden {
        lines = vec![Line::styled("only admins see workers", theme.dim())];
    }
    let lost = state.pools().into_iter().filter(|pool| pool.is_lost());
    lines.extend(lost.map(|pool| {
        let text = format!("{}: no worker, {} waiting", pool.name, counted(pool.waiting, "call"));
        Line::styled(visible(&text, CHARS_MAX), theme.bad())
    }));
    lines.extend(state.data.pauses.iter().map(|pause| {
        let (kind, name) = match &pause.what {
            Some(v1::pause::What::Tool(name)) => ("tool", name.as_str()),
            Some(v1::pause::What::Pool(name)) => ("pool", name.as_str()),
            None => ("", ""),
        };
        let why = if pause.reason.is_empty() { String::new() } else { format!(": {}", brief(&pause.reason)) };
        Line::styled(visible(&format!("{kind} {name} is paused{why}"), CHARS_MAX), theme.asking())
    }));
    let coverage = state.data.counts.coverage.unwrap_or_default();
    if state.data.counts.parked > 0 {
        lines.push(number("parked", state.data.counts.parked.to_string(), theme));
    }
    if !coverage.complete {
        lines.push(Line::styled("the index is incomplete", theme.bad()));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// Open calls of a tool, and how long the newest of those that ended took, from acceptance to end.
#[derive(Debug, Default)]
struct Tool {
    running: u64,
    waiting: u64,
    took: Vec<u64>,
}

fn draw_tools(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let area = titled(frame, area, "tools ", theme);
    let mut tools: BTreeMap<&str, Tool> = BTreeMap::new();
    for of in &state.data.counts.tools {
        let tool = tools.entry(&of.tool).or_default();
        match of.state() {
            v1::CallState::Running => tool.running += of.count,
            state if WAITING.contains(&state) => tool.waiting += of.count,
            _ => {}
        }
    }
    for run in &state.data.runs {
        let Some(began) = run.create_time.map(millis) else { continue };
        for call in &run.calls {
            let Some(ended) = call.end_time.map(millis) else { continue };
            tools.entry(&call.tool).or_default().took.push(ended.saturating_sub(began));
        }
    }
    let mut tools: Vec<(&str, Tool)> = tools.into_iter().filter(|(name, _)| !name.is_empty()).collect();
    tools.sort_by_key(|(_, tool)| std::cmp::Reverse((tool.running + tool.waiting, tool.took.len())));
    let head = Line::styled(format!("{:15}{:>5}{:>5}{:>7}{:>7}", "", "run", "wait", "p50", "p95"), theme.dim());
    let rows = tools.into_iter().map(|(name, mut tool)| {
        tool.took.sort_unstable();
        let (half, most) = (quantile(&tool.took, 50), quantile(&tool.took, 95));
        Line::raw(format!("{:15}{:>5}{:>5}{half:>7}{most:>7}", cut(name, 14), tool.running, tool.waiting))
    });
    frame.render_widget(Paragraph::new(std::iter::once(head).chain(rows).collect::<Vec<_>>()), area);
}

/// The time within which so many percent ended; empty if none did.
fn quantile(sorted: &[u64], percent: usize) -> String {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    let Some(millis) = sorted.get(at) else { return String::new() };
    // Minutes alone, so that it fits its column.
    match millis {
        0..60_000 => duration(Duration::from_millis(*millis)),
        _ => format!("{} min", millis / 60_000),
    }
}

/// A name that fits a column.
fn cut(name: &str, columns: usize) -> String {
    let shown = visible(name, columns);
    if shown.chars().count() > columns { visible(name, columns - 1) } else { shown }
}

fn draw_failed(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let area = titled(frame, area, "last failures ", theme);
    if state.data.failed.is_empty() {
        frame.render_widget(Line::styled("none", theme.dim()), area);
        return;
    }
    let lines = state.data.failed.iter().map(|listed| {
        let call = listed.call.clone().unwrap_or_default();
        let age = since(state, call.end_time.or(listed.create_time).map(millis));
        let text =
            format!("{} {} · {age} ago · {}", call.tool, error_kind(call.error_kind()), short_id(&listed.run_id));
        Line::styled(visible(&text, CHARS_MAX), theme.bad())
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}
