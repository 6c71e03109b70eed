//! Checks that runs and their calls are in the sets that they belong to, and in no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::redis::pipe;
use run::RunId;

use super::{RedisStore, SETS, lists, sets};
use crate::index::Unavailable;
use crate::index::filter::{KEY_DIGITS, Key};
use crate::index::summary::Summary;

/// Members that are read together.
const SCAN: usize = 1000;

/// A member of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) run: RunId,
    pub(crate) set: String,
    pub(crate) member: String,
}

/// Iterates over all sets.
#[derive(Debug)]
pub(crate) struct Sets {
    left: Vec<String>,
    /// The member after which to go on, in the last set that is left.
    behind: Option<String>,
}

impl RedisStore {
    /// For each run, a set in which it or one of its calls is missing.
    pub(crate) async fn missing(&self, runs: &[Arc<Summary>]) -> Result<Vec<Option<String>>, Unavailable> {
        let mut pipeline = pipe();
        let mut queried = Vec::new();
        for (number, run) in runs.iter().enumerate() {
            sets::members(run, |set, member| {
                pipeline.cmd("ZSCORE").arg(&set).arg(member);
                queried.push((number, set));
            });
        }
        let mut missing = vec![None; runs.len()];
        if queried.is_empty() {
            return Ok(missing);
        }
        let scores: Vec<Option<f64>> = self.reads.ask(self.reads.live().await?, &pipeline).await?;
        for ((number, set), score) in queried.into_iter().zip(scores) {
            if score.is_none() {
                missing[number] = Some(set);
            }
        }
        Ok(missing)
    }

    pub(crate) async fn sets(&self) -> Result<Sets, Unavailable> {
        let (named,): (BTreeSet<String>,) =
            self.reads.ask(self.reads.live().await?, pipe().cmd("SMEMBERS").arg(SETS)).await?;
        let known = [sets::RUNS, sets::CALLS, sets::PARKED].map(str::to_owned);
        let left: BTreeSet<String> = named.into_iter().chain(known).collect();
        Ok(Sets { left: left.into_iter().collect(), behind: None })
    }

    /// The next members: all runs that were seen, and the members that do not belong. `None` at the end.
    pub(crate) async fn next_members(&self, sets: &mut Sets) -> Result<Option<(Vec<RunId>, Vec<Member>)>, Unavailable> {
        let Some(set) = sets.left.last().cloned() else { return Ok(None) };
        let from = sets.behind.take().map_or_else(|| "-".to_owned(), |behind| format!("({behind}"));
        let mut pipeline = pipe();
        pipeline.cmd("ZRANGE").arg(&set).arg(from).arg("+").arg("BYLEX").arg("LIMIT").arg(0).arg(SCAN);
        let (members,): (Vec<String>,) = self.reads.ask(self.reads.live().await?, &pipeline).await?;
        if members.len() < SCAN {
            sets.left.pop();
        } else {
            sets.behind = members.last().cloned();
        }
        let members = members.into_iter().filter_map(|member| {
            let key: Key = member.get(..KEY_DIGITS)?.parse().ok()?;
            Some(Member { run: key.run_id()?, set: set.clone(), member })
        });
        let members: Vec<Member> = members.collect();
        let mut runs: Vec<RunId> = members.iter().map(|member| member.run).collect();
        runs.dedup();
        let strays = self.strays(members, &runs).await?;
        Ok(Some((runs, strays)))
    }

    /// Of these members, those that do not belong in their set.
    pub(crate) async fn strays(&self, members: Vec<Member>, runs: &[RunId]) -> Result<Vec<Member>, Unavailable> {
        let places: Vec<Key> = runs.iter().map(|run| Key::from(*run)).collect();
        let found = lists::summaries(&self.reads, &places).await?;
        let known: BTreeMap<RunId, Arc<Summary>> =
            runs.iter().zip(found).filter_map(|(run, summary)| Some((*run, summary?))).collect();
        let belongs = |stray: &Member| {
            known.get(&stray.run).is_some_and(|run| {
                let mut found = false;
                sets::members(run, |set, member| found |= set == stray.set && member == stray.member);
                found
            })
        };
        Ok(members.into_iter().filter(|member| !belongs(member)).collect())
    }

    /// Whether a member is still in its set.
    pub(crate) async fn stands(&self, member: &Member) -> Result<bool, Unavailable> {
        let mut pipeline = pipe();
        pipeline.cmd("ZSCORE").arg(&member.set).arg(&member.member);
        let (score,): (Option<f64>,) = self.reads.ask(self.reads.live().await?, &pipeline).await?;
        Ok(score.is_some())
    }
}
