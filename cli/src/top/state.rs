//! The state of the terminal console: what was loaded, what is selected, and what the user is typing.

use std::collections::BTreeMap;

use proto::v1;

use super::prompt::Prompt;
use super::stream::Followed;

/// How long the result of an action stays on the screen.
const NOTICE_MS: u64 = 8_000;
/// Samples that the rates and their graph are made of, one a second.
const SAMPLES_MAX: usize = 60;
/// The rates are those of this time.
const RATE_MS: u64 = 10_000;

/// A page of the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Tab {
    #[default]
    Overview,
    Runs,
    Inbox,
    Fleet,
}

impl Tab {
    pub(super) const ALL: [Self; 4] = [Self::Overview, Self::Runs, Self::Inbox, Self::Fleet];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Runs => "Runs",
            Self::Inbox => "Inbox",
            Self::Fleet => "Workers",
        }
    }

    /// The page that is so many pages further, in a circle.
    pub(super) fn further(self, pages: usize) -> Self {
        let at = Self::ALL.iter().position(|tab| *tab == self).unwrap_or_default();
        Self::ALL[(at + pages) % Self::ALL.len()]
    }
}

/// The connection to the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    Connected,
    /// Requests fail since a moment, for a reason.
    Lost {
        since: u64,
        reason: String,
    },
}

/// The result of an action, for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) text: String,
    pub(super) is_error: bool,
    until: u64,
}

/// The selected row of a list. The row stays selected when the list is loaded again, wherever it then stands.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    at: usize,
    key: String,
}

impl Cursor {
    /// The position of the selected row among rows with these keys.
    pub(super) fn position(&self, keys: &[String]) -> usize {
        let found = keys.iter().position(|key| *key == self.key);
        found.unwrap_or(self.at).min(keys.len().saturating_sub(1))
    }

    /// Selects the row at a position, or the last one.
    pub(super) fn select(&mut self, position: usize, keys: &[String]) {
        self.at = position.min(keys.len().saturating_sub(1));
        self.key = keys.get(self.at).cloned().unwrap_or_default();
    }
}

/// What the pages show, as the coordinator returned it last.
#[derive(Debug, Default)]
pub(super) struct Data {
    pub(super) counts: v1::CountRunsResponse,
    pub(super) runs: Vec<v1::RunSummary>,
    pub(super) inbox: Vec<v1::ListedCall>,
    pub(super) workers: Vec<v1::Worker>,
    pub(super) pauses: Vec<v1::Pause>,
    /// Calls that are running, and calls that wait for a worker.
    pub(super) open: Vec<v1::ListedCall>,
    pub(super) failed: Vec<v1::ListedCall>,
    /// Workers and pauses are not shown to the user.
    pub(super) is_forbidden: bool,
}

impl Data {
    pub(super) fn calls_in(&self, states: &[v1::CallState]) -> u64 {
        self.counts.calls.iter().filter(|of| states.contains(&of.state())).map(|of| of.count).sum()
    }

    /// Calls that wait for an answer or a decision of a person.
    pub(super) fn for_people(&self) -> u64 {
        self.calls_in(&[v1::CallState::WaitingForClient, v1::CallState::AwaitingApproval])
    }
}

/// States in which a call waits for a worker.
pub(super) const WAITING: [v1::CallState; 2] = [v1::CallState::Accepted, v1::CallState::Queued];
/// States in which a call has ended.
const ENDED: [v1::CallState; 4] =
    [v1::CallState::Completed, v1::CallState::Failed, v1::CallState::Cancelled, v1::CallState::Expired];

/// How many calls there had been at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    at: u64,
    accepted: u64,
    ended: u64,
}

/// Calls a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) accepted: f64,
    pub(super) ended: f64,
}

/// A row of the page of workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FleetRow {
    Pool(PoolRow),
    Worker(v1::Worker),
}

/// A pool: the sum of its workers, and the calls of it that are known to be open.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PoolRow {
    pub(super) name: String,
    pub(super) workers: usize,
    pub(super) slots: u32,
    pub(super) running: usize,
    pub(super) waiting: usize,
    /// When the call that has been waiting longest was accepted.
    pub(super) oldest: Option<u64>,
    pub(super) pause: Option<v1::Pause>,
    /// It is known to have no worker.
    pub(super) is_empty: bool,
}

impl PoolRow {
    /// Whether calls wait for a worker that does not live.
    pub(super) fn is_lost(&self) -> bool {
        self.is_empty && self.waiting > 0
    }
}

/// A call that was explained, for the inbox and for the answer to "why".
#[derive(Debug, Clone)]
pub(super) struct Details {
    pub(super) run_id: String,
    pub(super) call_id: String,
    pub(super) why: String,
    pub(super) call: v1::Call,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) url: String,
    pub(super) tab: Tab,
    pub(super) data: Data,
    pub(super) samples: Vec<Sample>,
    pub(super) link: Link,
    /// In milliseconds since the Unix epoch.
    pub(super) now: u64,
    /// A request for the page is under way.
    pub(super) is_loading: bool,
    /// Something was loaded at least once.
    pub(super) is_loaded: bool,
    /// Which runs are listed; all, if unspecified.
    pub(super) status: v1::RunStatus,
    /// Texts by which rows are filtered, of each page.
    pub(super) filters: [String; Tab::ALL.len()],
    pub(super) cursors: [Cursor; Tab::ALL.len()],
    /// The run whose output is shown, over the page.
    pub(super) run: Option<Followed>,
    pub(super) details: Option<Details>,
    /// The explanation is shown over everything else.
    pub(super) is_explaining: bool,
    /// Lines of the explanation that are above the screen.
    pub(super) details_top: u16,
    pub(super) is_helping: bool,
    pub(super) prompt: Option<Prompt>,
    pub(super) notice: Option<Notice>,
    /// Rows of the terminal.
    pub(super) height: u16,
}

impl State {
    pub(super) fn new(url: String, now: u64) -> Self {
        Self {
            url,
            tab: Tab::default(),
            data: Data::default(),
            samples: Vec::new(),
            link: Link::Connected,
            now,
            is_loading: false,
            is_loaded: false,
            status: v1::RunStatus::Unspecified,
            filters: Default::default(),
            cursors: Default::default(),
            run: None,
            details: None,
            is_explaining: false,
            details_top: 0,
            is_helping: false,
            prompt: None,
            notice: None,
            height: 24,
        }
    }

    pub(super) fn filter(&self) -> &str {
        &self.filters[self.tab as usize]
    }

    pub(super) fn say(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), is_error: false, until: self.now + NOTICE_MS });
    }

    pub(super) fn complain(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), is_error: true, until: self.now + NOTICE_MS });
    }

    /// Sets the time, and removes what was shown for long enough.
    pub(super) fn at(&mut self, now: u64) {
        self.now = now;
        self.notice.take_if(|notice| notice.until <= now);
    }

    /// Keeps how many calls there are now.
    pub(super) fn sample(&mut self) {
        let all = self.data.counts.calls.iter().map(|of| of.count).sum();
        let sample = Sample { at: self.now, accepted: all, ended: self.data.calls_in(&ENDED) };
        self.samples.push(sample);
        let extra = self.samples.len().saturating_sub(SAMPLES_MAX);
        self.samples.drain(..extra);
    }

    /// The rates of the last seconds; none before there are two samples.
    pub(super) fn rates(&self) -> Option<Rates> {
        let last = self.samples.last()?;
        let first = self.samples.iter().find(|sample| sample.at + RATE_MS >= last.at)?;
        let seconds = last.at.checked_sub(first.at).filter(|millis| *millis > 0)? as f64 / 1000.0;
        // Calls that were forgotten or erased are counted no more.
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        Some(Rates { accepted: rate(first.accepted, last.accepted), ended: rate(first.ended, last.ended) })
    }

    /// Calls that ended between two samples, the oldest first.
    pub(super) fn ended_by_second(&self) -> Vec<u64> {
        self.samples.windows(2).map(|pair| pair[1].ended.saturating_sub(pair[0].ended)).collect()
    }

    /// The runs that pass the filter.
    pub(super) fn runs(&self) -> Vec<&v1::RunSummary> {
        let filter = self.filters[Tab::Runs as usize].to_lowercase();
        let passes = |run: &&v1::RunSummary| {
            let tools = run.calls.iter().map(|call| call.tool.as_str());
            let status = crate::words::run_status(run.status());
            matches(&filter, [run.run_id.as_str(), &status, &run.tenant].into_iter().chain(tools))
        };
        self.data.runs.iter().filter(passes).collect()
    }

    /// The calls for people that pass the filter.
    pub(super) fn inbox(&self) -> Vec<&v1::ListedCall> {
        let filter = self.filters[Tab::Inbox as usize].to_lowercase();
        let passes = |listed: &&v1::ListedCall| {
            let call = listed.call.as_ref();
            let (id, tool) = call.map_or(("", ""), |call| (call.call_id.as_str(), call.tool.as_str()));
            matches(&filter, [listed.run_id.as_str(), &listed.tenant, id, tool])
        };
        self.data.inbox.iter().filter(passes).collect()
    }

    /// The pools, then the workers, that pass the filter.
    pub(super) fn fleet(&self) -> Vec<FleetRow> {
        let filter = self.filters[Tab::Fleet as usize].to_lowercase();
        let pools = self.pools().into_iter().map(FleetRow::Pool);
        let rows = pools.chain(self.data.workers.iter().cloned().map(FleetRow::Worker));
        let passes = |row: &FleetRow| match row {
            FleetRow::Pool(pool) => matches(&filter, [pool.name.as_str()]),
            FleetRow::Worker(worker) => matches(&filter, [worker.worker_id.as_str(), &worker.pool]),
        };
        rows.filter(passes).collect()
    }

    /// The pools that have workers, open calls or a pause, by name.
    pub(super) fn pools(&self) -> Vec<PoolRow> {
        let mut pools: BTreeMap<String, PoolRow> = BTreeMap::new();
        let mut pool = |name: &str, change: &dyn Fn(&mut PoolRow)| {
            change(
                pools.entry(name.to_owned()).or_insert_with(|| PoolRow { name: name.to_owned(), ..PoolRow::default() }),
            );
        };
        for worker in &self.data.workers {
            pool(&worker.pool, &|row| {
                row.workers += 1;
                row.slots += worker.slots;
            });
        }
        for listed in &self.data.open {
            let Some(call) = listed.call.as_ref().filter(|call| !call.pool.is_empty()) else { continue };
            let at = listed.create_time.map(millis);
            pool(&call.pool, &|row| match call.state() {
                v1::CallState::Running => row.running += 1,
                _ => {
                    row.waiting += 1;
                    row.oldest = [row.oldest, at].into_iter().flatten().min();
                }
            });
        }
        for pause in &self.data.pauses {
            if let Some(v1::pause::What::Pool(name)) = &pause.what {
                pool(name, &|row| row.pause = Some(pause.clone()));
            }
        }
        let is_forbidden = self.data.is_forbidden;
        pools.into_values().map(|row| PoolRow { is_empty: row.workers == 0 && !is_forbidden, ..row }).collect()
    }

    /// The keys of the rows of the page, in their order.
    pub(super) fn keys(&self) -> Vec<String> {
        match self.tab {
            Tab::Overview => Vec::new(),
            Tab::Runs => self.runs().into_iter().map(|run| run.run_id.clone()).collect(),
            Tab::Inbox => self.inbox().into_iter().map(call_key).collect(),
            Tab::Fleet => self.fleet().iter().map(fleet_key).collect(),
        }
    }

    /// The position of the selected row.
    pub(super) fn position(&self) -> usize {
        self.cursors[self.tab as usize].position(&self.keys())
    }

    pub(super) fn select(&mut self, position: usize) {
        let keys = self.keys();
        self.cursors[self.tab as usize].select(position, &keys);
    }

    pub(super) fn selected_run(&self) -> Option<&v1::RunSummary> {
        self.runs().get(self.position()).copied()
    }

    pub(super) fn selected_call(&self) -> Option<&v1::ListedCall> {
        self.inbox().get(self.position()).copied()
    }

    pub(super) fn selected_row(&self) -> Option<FleetRow> {
        self.fleet().into_iter().nth(self.position())
    }
}

fn call_key(listed: &v1::ListedCall) -> String {
    format!("{}/{}", listed.run_id, listed.call.as_ref().map_or("", |call| &call.call_id))
}

fn fleet_key(row: &FleetRow) -> String {
    match row {
        FleetRow::Pool(pool) => format!("pool {}", pool.name),
        FleetRow::Worker(worker) => format!("worker {}", worker.worker_id),
    }
}

fn matches<'a>(filter: &str, texts: impl IntoIterator<Item = &'a str>) -> bool {
    filter.is_empty() || texts.into_iter().any(|text| text.to_lowercase().contains(filter))
}

/// A time of the API in milliseconds since the Unix epoch.
pub(super) fn millis(time: prost_types::Timestamp) -> u64 {
    u64::try_from(time.seconds * 1000 + i64::from(time.nanos) / 1_000_000).unwrap_or_default()
}
