//! `toolyard open`: the page of a run in the web console.

use std::process::{Command, Stdio};

use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::last::RunArg;
use crate::server::Server;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  toolyard open last
  toolyard open run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f --print
  toolyard open                                 The console's first page

It is the console of the coordinator that other commands talk to. Without a
graphical session, and with --print, the address is only printed.";

/// Open a run in the web console, or print its address
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: Option<RunArg>,
    /// Print the address instead of opening it
    #[arg(long)]
    print: bool,
}

pub(crate) async fn run(args: Args, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let base = door.url()?;
    let address = match args.run {
        None => page(&base, None),
        // A whole id needs no coordinator, only a browser.
        Some(run) => page(&base, Some(&run.id(&door.connect().await?).await?)),
    };
    if terminal.is_json() {
        terminal.object(&Object::default().field("url", &address))?;
    } else {
        terminal.line(&address)?;
    }
    if !args.print && has_session() && !opened(&address) {
        terminal.note("no browser could be started: open the address yourself");
    }
    Ok(Exit::Completed)
}

/// The address of a run's page, or of the first one.
fn page(base: &str, run_id: Option<&str>) -> String {
    let base = base.trim_end_matches('/');
    match run_id {
        Some(run_id) => format!("{base}/console/#/runs/{run_id}"),
        None => format!("{base}/console/"),
    }
}

/// Whether a browser can show something here.
fn has_session() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

fn opened(address: &str) -> bool {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(opener);
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_run_is_below_the_console_also_behind_a_path() {
        assert_eq!(page("http://127.0.0.1:7420", Some("run_1")), "http://127.0.0.1:7420/console/#/runs/run_1");
        assert_eq!(page("https://example.com/tools/", Some("run_1")), "https://example.com/tools/console/#/runs/run_1");
        assert_eq!(page("http://h:1/", None), "http://h:1/console/");
    }
}
