//! `toolyard top`: a console in the terminal. [`update`] changes the state by events, [`draw`] draws it, and this file
//! brings events and carries out what they request.

mod draw;
mod effect;
mod keys;
mod lines;
mod prompt;
mod requests;
mod screen;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod update;

use std::io::IsTerminal as _;
use std::time::Duration;

use crossterm::event::{Event as Input, EventStream};
use futures::StreamExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::draw::Theme;
use self::effect::{Effect, Event};
use self::requests::Requests;
use self::screen::Screen;
use self::state::{State, Tab};
use crate::exit::{Exit, Failure};
use crate::interrupts::Interrupts;
use crate::last::RunArg;
use crate::server::Server;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  toolyard top
  toolyard top --page inbox
  toolyard top last                     Follow the run that you created last
  TOOLYARD_URL=https://toolyard.example.com toolyard top

`?` shows the keys. If the coordinator goes away, it reconnects, and the output
of a run goes on after the last event. docs/howto/top.md shows the pages.";

/// How often the page is loaded again.
const TICK: Duration = Duration::from_secs(1);
/// The shortest time between two pictures.
const FRAME: Duration = Duration::from_millis(33);
/// Events that wait to be taken in: output of a run is not read faster than it is shown.
const EVENTS_MAX: usize = 64;

/// Look at runs, calls, workers and what waits for people, live in the terminal
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Follow this run: its id, or `last` for the run that you created last
    run: Option<RunArg>,
    /// The page to begin with
    #[arg(long, value_enum, default_value_t)]
    page: Page,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Page {
    #[default]
    Overview,
    Runs,
    Inbox,
    Workers,
}

impl Page {
    fn tab(self) -> Tab {
        match self {
            Self::Overview => Tab::Overview,
            Self::Runs => Tab::Runs,
            Self::Inbox => Tab::Inbox,
            Self::Workers => Tab::Fleet,
        }
    }
}

pub(crate) async fn run(args: Args, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    if terminal.is_json() || !terminal.stdout_is_terminal() || !std::io::stdin().is_terminal() {
        let why = "`toolyard top` draws on a terminal, and there is none: for programs use `toolyard runs ls`, \
                   `toolyard inbox`, `toolyard workers ls` and `toolyard runs watch`, with -o json";
        return Err(Failure::Usage(why.to_owned()));
    }
    let client = door.connect().await?;
    let run_id = match args.run {
        Some(run) => Some(client.run(&run.id(&client).await?).await?.run_id),
        None => None,
    };
    let (events, received) = channel(EVENTS_MAX);
    let mut console = Console {
        state: State::new(door.url()?, ::nats::now().0),
        theme: Theme { has_colors: terminal.paint().0 },
        requests: Requests::new(client, events),
        screen: Screen::open()?,
    };
    console.state.tab = args.page.tab();
    console.state.height = console.screen.height();
    // Requests and what they change share a thread.
    let all = async {
        if let Some(run_id) = run_id {
            let effects = update::follow(&mut console.state, run_id);
            console.perform(effects);
        }
        console.until_quit(received).await
    };
    Box::pin(LocalSet::new().run_until(all)).await
}

struct Console {
    state: State,
    theme: Theme,
    requests: Requests,
    screen: Screen,
}

impl Console {
    async fn until_quit(mut self, mut received: Receiver<Event>) -> Result<Exit, Failure> {
        let mut interrupts = Interrupts::listen()?;
        let mut hung_up = signal(SignalKind::hangup()).map_err(Failure::Signals)?;
        let (mut keys, mut ticks) = (EventStream::new(), interval(TICK));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut next_frame, mut is_stale) = (Instant::now(), true);
        loop {
            let event = tokio::select! {
                () = interrupts.next() => return Err(Failure::Interrupted),
                _ = hung_up.recv() => return Err(Failure::Interrupted),
                // The terminal is gone.
                key = keys.next() => match key {
                    Some(Ok(input)) => input_event(input),
                    Some(Err(error)) => return Err(Failure::Output(error)),
                    None => return Err(Failure::Interrupted),
                },
                _ = ticks.tick() => Some(Event::Tick(::nats::now().0)),
                Some(event) = received.recv() => Some(event),
                () = sleep_until(next_frame), if is_stale => {
                    self.screen.draw(|frame| draw::draw(frame, &self.state, self.theme))?;
                    (next_frame, is_stale) = (Instant::now() + FRAME, false);
                    None
                }
            };
            let Some(event) = event else { continue };
            is_stale = true;
            let effects = update::update(&mut self.state, event);
            if self.perform(effects) {
                return Ok(Exit::Completed);
            }
        }
    }

    /// Carries effects out. Returns whether the console is to end.
    fn perform(&mut self, effects: Vec<Effect>) -> bool {
        for effect in effects {
            match effect {
                Effect::Load(page) => self.requests.load(page),
                Effect::Follow(run_id) => self.requests.follow(run_id),
                Effect::Unfollow => self.requests.unfollow(),
                Effect::Explain { run_id, call_id } => self.requests.explain(run_id, call_id),
                Effect::Act(action) => self.requests.act(action),
                Effect::Quit => return true,
            }
        }
        false
    }
}

fn input_event(input: Input) -> Option<Event> {
    match input {
        Input::Key(key) => Some(Event::Key(key)),
        Input::Paste(text) => Some(Event::Paste(text)),
        Input::Resize(_, height) => Some(Event::Resize(height)),
        Input::FocusGained | Input::FocusLost | Input::Mouse(_) => None,
    }
}
