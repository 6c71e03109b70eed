//! The pages that are lists: runs, the inbox, workers and pools.

use std::time::Duration;

use proto::v1;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Span;
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::{CHARS_MAX, Theme, explanation};
use crate::top::state::{FleetRow, PoolRow, State, millis};
use crate::words::{counted, duration, run_status, short_id, summary_status, visible};

/// Rows of the list of the inbox at least, however long the arguments below are.
const INBOX_ROWS_MIN: u16 = 4;

/// How long ago a moment was, in whole seconds.
pub(super) fn since(state: &State, at: Option<u64>) -> String {
    let Some(at) = at else { return String::new() };
    duration(Duration::from_secs(state.now.saturating_sub(at) / 1000))
}

fn shown(text: &str) -> String {
    visible(text, CHARS_MAX)
}

/// A list with the names of its columns, and one selected row.
struct List<'a> {
    title: String,
    names: &'a [&'a str],
    widths: &'a [Constraint],
    rows: Vec<Row<'a>>,
    empty: &'a str,
}

impl List<'_> {
    fn draw(self, frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
        let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        frame.render_widget(Span::styled(self.title, theme.bold()), title);
        if self.rows.is_empty() {
            frame.render_widget(Span::styled(self.empty.to_owned(), theme.dim()), body);
            return;
        }
        let head = Row::new(self.names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).style(theme.dim());
        let table = Table::new(self.rows, self.widths.iter().copied()).header(head);
        let mut selected = TableState::default().with_selected(state.position());
        frame.render_stateful_widget(table.row_highlight_style(theme.selected()), body, &mut selected);
    }
}

/// A title with the filter of the page.
fn titled(state: &State, title: String) -> String {
    match state.filter() {
        "" => title,
        filter => format!("{title}, with {:?}", shown(filter)),
    }
}

pub(super) fn runs(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let runs = state.runs();
    let status = match state.status {
        v1::RunStatus::Unspecified => String::new(),
        status => format!(" {}", run_status(status)),
    };
    let title = titled(state, format!("{}{status}, the newest first", counted(runs.len(), "run")));
    let is_wide = area.width >= 110;
    let rows = runs.iter().map(|run| {
        let id = if is_wide { shown(&run.run_id) } else { shown(&short_id(&run.run_id)) };
        let mut tools: Vec<&str> = run.calls.iter().map(|call| call.tool.as_str()).collect();
        tools.dedup();
        let tenant = if run.tenant.is_empty() { String::new() } else { format!("{}: ", run.tenant) };
        let calls = format!("{tenant}{} {}", run.calls.len(), tools.join(", "));
        let status = Cell::from(Span::styled(summary_status(run), theme.run(run.status())));
        Row::new([
            Cell::from(id),
            status,
            Cell::from(since(state, run.create_time.map(millis))),
            Cell::from(shown(&calls)),
        ])
    });
    let id = if is_wide { 40 } else { 16 };
    List {
        title,
        names: &["RUN", "STATUS", "AGE", "CALLS"],
        widths: &[Constraint::Length(id), Constraint::Length(21), Constraint::Length(11), Constraint::Min(10)],
        rows: rows.collect(),
        empty: "no such run",
    }
    .draw(frame, area, state, theme);
}

pub(super) fn inbox(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let calls = state.inbox();
    let rows =
        u16::try_from(calls.len() + 2).unwrap_or(u16::MAX).clamp(INBOX_ROWS_MIN, (area.height / 2).max(INBOX_ROWS_MIN));
    let [list, below] = Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(area);
    let title = titled(state, format!("{} for people, those of the newest run first", counted(calls.len(), "call")));
    let rows = calls.iter().map(|listed| {
        let call = listed.call.clone().unwrap_or_default();
        let waits = match call.state() {
            v1::CallState::AwaitingApproval => "approval",
            _ => "answer",
        };
        let who =
            if listed.tenant.is_empty() { call.call_id } else { format!("{} of {}", call.call_id, listed.tenant) };
        let cells = [call.tool, since(state, listed.create_time.map(millis)), short_id(&listed.run_id), who];
        let cells = cells.iter().map(|cell| Cell::from(shown(cell)));
        Row::new(std::iter::once(Cell::from(Span::styled(waits, theme.asking()))).chain(cells).collect::<Vec<_>>())
    });
    List {
        title,
        names: &["WAITS FOR", "TOOL", "AGE", "RUN", "CALL"],
        widths: &[
            Constraint::Length(9),
            Constraint::Length(20),
            Constraint::Length(11),
            Constraint::Length(16),
            Constraint::Min(10),
        ],
        rows: rows.collect(),
        empty: "nothing waits for a person",
    }
    .draw(frame, list, state, theme);
    if let Some(details) = &state.details {
        let block = Block::new().borders(Borders::TOP).border_style(theme.dim());
        let text = Paragraph::new(explanation(details, theme)).wrap(Wrap { trim: false });
        frame.render_widget(text.block(block), below);
    }
}

pub(super) fn fleet(frame: &mut Frame, area: Rect, state: &State, theme: Theme) {
    let rows = state.fleet();
    let (workers, pools) = (state.data.workers.len(), state.pools().len());
    let title = titled(state, format!("{}, {}", counted(pools, "pool"), counted(workers, "worker")));
    let paused: Vec<String> =
        state.pools().into_iter().filter(|pool| pool.pause.is_some()).map(|pool| pool.name).collect();
    let rows = rows.iter().map(|row| match row {
        FleetRow::Pool(pool) => pool_row(pool, state, theme),
        FleetRow::Worker(worker) => worker_row(worker, paused.contains(&worker.pool), theme),
    });
    List {
        title,
        names: &["POOL, WORKER", "", "SLOTS", "RUN", "WAIT", "STATE"],
        widths: &[
            Constraint::Length(25),
            Constraint::Length(10),
            Constraint::Length(5),
            Constraint::Length(4),
            Constraint::Length(4),
            Constraint::Min(10),
        ],
        rows: rows.collect(),
        empty: if state.data.is_forbidden { "only admins see workers" } else { "no worker lives" },
    }
    .draw(frame, area, state, theme);
}

fn pool_row<'a>(pool: &PoolRow, state: &State, theme: Theme) -> Row<'a> {
    let (stands, style) = match (&pool.pause, pool.oldest) {
        (Some(pause), _) => {
            let by = if pause.by.is_empty() { String::new() } else { format!(" by {}", pause.by) };
            let why = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
            (format!("paused{by}{why}"), theme.asking())
        }
        (None, _) if pool.is_empty => ("no worker lives".to_owned(), theme.bad()),
        (None, Some(oldest)) => (format!("oldest waits {}", since(state, Some(oldest))), Style::new()),
        (None, None) => (String::new(), Style::new()),
    };
    let cells = [
        pool.name.clone(),
        counted(pool.workers, "worker"),
        pool.slots.to_string(),
        pool.running.to_string(),
        pool.waiting.to_string(),
    ];
    let cells = cells.iter().map(|cell| Cell::from(shown(cell)));
    let row = cells.chain([Cell::from(Span::styled(shown(&stands), style))]).collect::<Vec<_>>();
    Row::new(row).style(theme.bold())
}

fn worker_row<'a>(worker: &v1::Worker, is_paused: bool, theme: Theme) -> Row<'a> {
    let does = crate::workers::does(worker, is_paused);
    let style = if worker.draining { theme.asking() } else { Style::new() };
    let release = if worker.release.is_empty() { String::new() } else { format!(" · {}", worker.release) };
    let cells = [format!("  {}", worker.worker_id), worker.pool.clone(), worker.slots.to_string()];
    let cells = cells.iter().map(|cell| Cell::from(shown(cell)));
    let rest = [Cell::from(""), Cell::from(""), Cell::from(Span::styled(shown(&format!("{does}{release}")), style))];
    Row::new(cells.chain(rest).collect::<Vec<_>>())
}
