//! `toolyard nats-keys`: replaces keys of the broker in three steps. In between, both keys are let in.

use std::fs;
use std::path::{Path, PathBuf};

use nats::access::Party;
use nats::access::config::{self, User};
use nkeys::KeyPair;

use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::key_files::{self, KeyFiles, wrong};
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  toolyard nats-keys add --out broker pool-shell
  toolyard nats-keys switch --out broker pool-shell
  toolyard nats-keys retire --out broker pool-shell

Reload each server after `add` and after `retire`, and restart the processes of
the user after `switch`. No connection is cut off or refused meanwhile.";

const ADD_EXAMPLES: &str = "\
Examples:
  toolyard nats-keys add --out broker pool-shell
  toolyard nats-keys add --out broker coordinator observer

It writes the new seed to rotation/USER.next.nk, and accounts.conf with both
public keys of the user. Everything else in accounts.conf stays. Repeating it
does no harm. Nothing uses the new key yet.

With -o json it writes {step, accounts, keys [user, public_key, file]}: all
keys of these users.";

const SWITCH_EXAMPLES: &str = "\
Examples:
  toolyard nats-keys switch --out broker pool-shell

Do it when all servers have read the accounts.conf of `nats-keys add`. The new
seed takes the place of the old one in keys/USER.nk; the old one goes to
rotation/USER.old.nk. The broker still lets both in.

With -o json it writes {step, accounts, keys [user, public_key, file]}: all
keys of these users.";

const RETIRE_EXAMPLES: &str = "\
Examples:
  toolyard nats-keys retire --out broker pool-shell

Do it when no process uses the old key any more. accounts.conf has only the new
key afterwards, and the old seed is deleted. The next reload of a server closes
connections of the old key, and of no other.

With -o json it writes {step, accounts, keys [user, public_key, file]}: all
keys of these users.";

/// Replace keys of the broker while everything runs: add a key, switch to it, retire the old one
#[derive(Debug, clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Command {
    /// Make a second key for each of these users, and let both in
    #[command(after_help = ADD_EXAMPLES)]
    Add(Args),
    /// Put the second key in the place of the first
    #[command(after_help = SWITCH_EXAMPLES)]
    Switch(Args),
    /// Let the old key in no more
    #[command(after_help = RETIRE_EXAMPLES)]
    Retire(Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder that `toolyard nats-config` wrote
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// coordinator, observer, operator or pool-NAME
    #[arg(required = true, value_name = "USER", value_parser = user)]
    users: Vec<Party>,
}

fn user(name: &str) -> Result<Party, &'static str> {
    Party::named(name).ok_or("a user is coordinator, observer, operator or pool-NAME")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Add,
    Switch,
    Retire,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Switch => "switch",
            Self::Retire => "retire",
        }
    }
}

pub(crate) fn run(command: &Command, terminal: &Terminal) -> Result<Exit, Failure> {
    let (step, Args { out, users: named }) = match command {
        Command::Add(args) => (Step::Add, args),
        Command::Switch(args) => (Step::Switch, args),
        Command::Retire(args) => (Step::Retire, args),
    };
    let mut users: Vec<Party> = Vec::new();
    for party in named {
        if !users.contains(party) {
            users.push(party.clone());
        }
    }
    let mut rotations = Vec::new();
    let accounts = out.join("accounts.conf");
    let mut let_in = let_in(&accounts)?;
    // Nothing is changed unless the step makes sense for all of them.
    for party in &users {
        let rotation = Rotation::of(party, out, &let_in)?;
        rotation.check(step, &let_in)?;
        rotations.push(rotation);
    }
    for rotation in &rotations {
        match step {
            Step::Add => rotation.add(&mut let_in)?,
            Step::Switch => rotation.switch()?,
            Step::Retire => rotation.retire(&mut let_in),
        }
    }
    if step != Step::Switch {
        key_files::publish(&accounts, &config::accounts(&let_in))?;
    }
    if step == Step::Retire {
        // An old seed is deleted when accounts.conf no longer has its key, else it would stay there unnoticed.
        rotations.iter().try_for_each(Rotation::forget)?;
    }
    tell(terminal, step, out, &users)?;
    Ok(Exit::Completed)
}

/// The users that the broker lets in.
fn let_in(accounts: &Path) -> Result<Vec<User>, Failure> {
    let text = fs::read_to_string(accounts).map_err(|error| wrong(accounts, &error))?;
    config::users(&text).ok_or_else(|| {
        let reason = "another release wrote it, or it was edited. Run `toolyard nats-config` with all pools first";
        wrong(accounts, &reason)
    })
}

/// A user whose key is replaced.
struct Rotation {
    party: Party,
    files: KeyFiles,
    current: KeyPair,
    next: Option<KeyPair>,
    old: Option<KeyPair>,
}

impl Rotation {
    fn of(party: &Party, out: &Path, let_in: &[User]) -> Result<Self, Failure> {
        if !let_in.iter().any(|user| user.party == *party) {
            let mut names: Vec<String> = let_in.iter().map(|user| user.party.name()).collect();
            names.dedup();
            let (name, names) = (party.name(), names.join(", "));
            return Err(Failure::Usage(format!("accounts.conf has no user {name}. It has {names}")));
        }
        let files = KeyFiles::of(party, out);
        let current = key_files::read(&files.current)?;
        let current =
            current.ok_or_else(|| wrong(&files.current, &"there is no such file. It holds the user's key"))?;
        let (next, old) = (key_files::read(&files.next)?, key_files::read(&files.old)?);
        // `switch` was interrupted between its two steps, of which the first copies the key.
        let old = old.filter(|old| next.is_none() || old.public_key() != current.public_key());
        Ok(Self { party: party.clone(), files, current, next, old })
    }

    /// Whether the step may follow the steps that were done before.
    fn check(&self, step: Step, let_in: &[User]) -> Result<(), Failure> {
        let Self { party, files, current, next, old } = self;
        let (name, next_file, old_file) = (party.name(), files.next.display(), files.old.display());
        let has = |pair: &KeyPair| let_in.iter().any(|user| user.public_key == pair.public_key());
        let refused = |reason: String| Err(Failure::Usage(format!("{name}: {reason}")));
        if !has(current) {
            return Err(wrong(&files.current, &"its key is not in accounts.conf. Run `toolyard nats-config` first"));
        }
        match (step, next, old) {
            (_, Some(_), Some(_)) => refused(format!(
                "there are both {next_file} and {old_file}. Move the one away that no process uses, and run \
                 `toolyard nats-config`"
            )),
            (Step::Add, None, Some(_)) => refused(format!(
                "its key is being replaced already, and processes may still use the old one, {old_file}. Finish that \
                 with `toolyard nats-keys retire`"
            )),
            (Step::Switch, None, None) => {
                refused("it has no second key. Begin with `toolyard nats-keys add`".to_owned())
            }
            (Step::Switch, Some(next), None) if !has(next) => refused(format!(
                "the key in {next_file} is not in accounts.conf. Repeat `toolyard nats-keys add`, and reload all servers"
            )),
            (Step::Retire, Some(_), None) => {
                refused(format!("the new key, {next_file}, is not in use yet. Go on with `toolyard nats-keys switch`"))
            }
            (Step::Add, _, None) | (Step::Switch, Some(_), None) => Ok(()),
            // Repeated.
            (Step::Switch, None, Some(_)) | (Step::Retire, None, _) => Ok(()),
        }
    }

    fn add(&self, let_in: &mut Vec<User>) -> Result<(), Failure> {
        let public_key = match &self.next {
            Some(next) => next.public_key(),
            None => key_files::make(&self.files.next)?.public_key(),
        };
        if !let_in.iter().any(|user| user.public_key == public_key) {
            let_in.push(User { party: self.party.clone(), public_key });
        }
        Ok(())
    }

    /// Copies the key in use, and then replaces it: a process that starts meanwhile finds the one or the other.
    fn switch(&self) -> Result<(), Failure> {
        let KeyFiles { current, next, old } = &self.files;
        if self.next.is_none() {
            return Ok(());
        }
        key_files::store(old, &self.current)?;
        fs::rename(next, current).map_err(|error| wrong(next, &error))
    }

    fn retire(&self, let_in: &mut Vec<User>) {
        let kept = self.current.public_key();
        let_in.retain(|user| user.party != self.party || user.public_key == kept);
    }

    fn forget(&self) -> Result<(), Failure> {
        match self.old {
            Some(_) => fs::remove_file(&self.files.old).map_err(|error| wrong(&self.files.old, &error)),
            None => Ok(()),
        }
    }
}

fn tell(terminal: &Terminal, step: Step, out: &Path, users: &[Party]) -> Result<(), Failure> {
    let accounts = out.join("accounts.conf").display().to_string();
    let mut keys = Vec::new();
    for party in users {
        let KeyFiles { current, next, old } = KeyFiles::of(party, out);
        for file in [current, next, old] {
            if let Some(pair) = key_files::read(&file)? {
                keys.push((party.name(), pair.public_key(), file.display().to_string()));
            }
        }
    }
    if terminal.is_json() {
        let key = |(user, public_key, file)| {
            Object::default().field("user", user).field("public_key", public_key).field("file", file)
        };
        let keys: Vec<Object> = keys.into_iter().map(key).collect();
        let said = Object::default().field("step", step.name()).field("accounts", accounts).field("keys", keys);
        return terminal.object(&said);
    }
    for (_, public_key, file) in keys {
        terminal.line(&format!("{file}  {public_key}"))?;
    }
    let names: Vec<String> = users.iter().map(Party::name).collect();
    let rest = format!("--out {} {}", out.display(), names.join(" "));
    let reload = format!("Give each server {accounts} and reload it: nats-server --signal reload");
    terminal.line(&match step {
        Step::Add => format!("\nNext:\n1. {reload}\n2. toolyard nats-keys switch {rest}"),
        Step::Switch => format!(
            "\nNext:\n1. Give the processes the new seed, and restart them, one after the other\n\
             2. toolyard nats-keys retire {rest}"
        ),
        Step::Retire => format!("\nNext: {reload}"),
    })
}
