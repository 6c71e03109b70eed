//! Checks whether a value matches a schema. Each step is counted, and results at the targets of references are
//! remembered, so no union, recursion or repetition costs more than the schema's size times the value's.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::compile::{Id, Keyword, Members, Node};
use super::value::{compare, hash, is_multiple, same};
use crate::steps::{Exhausted, Steps};

/// Nested subschemas while a value is checked: JSON is at most 127 levels deep, with about four subschemas a level.
/// Their use of the stack stays below 1 MiB.
const DEPTH_MAX: u32 = 640;
/// Steps for a remembered result, because it takes memory.
const STEPS_TO_REMEMBER: u64 = 8;

/// Why a check gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It needs more steps than it may take.
    Steps,
    /// Subschemas lead too deep into each other.
    Depth,
}

impl From<Exhausted> for Stop {
    fn from(Exhausted: Exhausted) -> Self {
        Self::Steps
    }
}

/// A check of one value.
pub(super) struct Check<'a> {
    pub(super) nodes: &'a [Node],
    pub(super) steps: Steps,
    depth: u32,
    /// By subschema and address of the value.
    known: HashMap<(Id, *const Value), bool>,
    /// The node and value at which the check gave up.
    pub(super) stopped_at: Option<*const Value>,
}

type Checked = Result<bool, Stop>;

impl<'a> Check<'a> {
    pub(super) fn new(nodes: &'a [Node], steps: Steps) -> Self {
        Self { nodes, steps, depth: 0, known: HashMap::new(), stopped_at: None }
    }

    pub(super) fn node(&self, id: Id) -> &'a Node {
        &self.nodes[id as usize]
    }

    /// Whether the value fits the subschema.
    pub(super) fn fits(&mut self, id: Id, value: &Value) -> Checked {
        let node = self.node(id);
        self.within(value, |check| {
            check.pay(1 + node.keywords.len() as u64)?;
            let key = (id, std::ptr::from_ref(value));
            let is_remembered = node.is_shared && (value.is_object() || value.is_array());
            if is_remembered && let Some(known) = check.known.get(&key) {
                return Ok(*known);
            }
            let mut fits = true;
            for keyword in &node.keywords {
                if !check.keyword(keyword, id, value)? {
                    fits = false;
                    break;
                }
            }
            if is_remembered {
                check.pay(STEPS_TO_REMEMBER)?;
                check.known.insert(key, fits);
            }
            Ok(fits)
        })
    }

    /// Runs a check one level deeper, and notes the position if it gives up.
    fn within<T>(&mut self, value: &Value, work: impl FnOnce(&mut Self) -> Result<T, Stop>) -> Result<T, Stop> {
        self.enter(value)?;
        let done = work(self);
        self.leave();
        if done.is_err() && self.stopped_at.is_none() {
            self.stopped_at = Some(value);
        }
        done
    }

    pub(super) fn enter(&mut self, value: &Value) -> Result<(), Stop> {
        if self.depth >= DEPTH_MAX {
            self.stopped_at = Some(value);
            return Err(Stop::Depth);
        }
        self.depth += 1;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    pub(super) fn pay(&mut self, steps: u64) -> Result<(), Stop> {
        Ok(self.steps.take(steps)?)
    }

    /// Whether a value fits one keyword of the subschema `id`.
    pub(super) fn keyword(&mut self, keyword: &'a Keyword, id: Id, value: &Value) -> Checked {
        match (keyword, value) {
            (Keyword::All(branches), _) => self.all(branches, value),
            (Keyword::Any(branches), _) => self.any(branches, value),
            (Keyword::One(branches), _) => self.one(branches, value),
            (Keyword::Not(branch), _) => Ok(!self.fits(*branch, value)?),
            (Keyword::Reference(target), _) => self.fits(*target, value),
            (Keyword::If { then: None, otherwise: None, .. }, _) => Ok(true),
            (Keyword::If { condition, then, otherwise }, _) => {
                let branch = if self.fits(*condition, value)? { then } else { otherwise };
                branch.map_or(Ok(true), |branch| self.fits(branch, value))
            }
            (Keyword::Items { prefix, rest }, Value::Array(items)) => self.items(prefix, *rest, items),
            (Keyword::Members(members), Value::Object(object)) => self.members(members, object),
            (Keyword::Dependent(schemas), Value::Object(object)) => self.dependent(schemas, object, value),
            (Keyword::OtherItems(item), Value::Array(items)) => self.other_items(*item, id, items, value),
            (Keyword::OtherMembers(member), Value::Object(object)) => self.other_members(*member, id, object, value),
            (Keyword::Contains { item, min, max }, Value::Array(items)) => self.contains(*item, (*min, *max), items),
            (Keyword::Names(names), Value::Object(object)) => self.names(*names, object),
            (keyword, value) => self.leaf(keyword, value),
        }
    }

    /// Keywords that lead to no other subschema.
    fn leaf(&mut self, keyword: &'a Keyword, value: &Value) -> Checked {
        Ok(match (keyword, value) {
            (Keyword::Never, _) => false,
            (Keyword::Type(types), value) => types.holds(value),
            (Keyword::Among(among), value) => {
                let (hash, parts) = hash(value);
                self.pay(2 * parts)?;
                among.holds(value, hash)
            }
            (Keyword::Least(limit), Value::Number(number)) => compare(number, limit) != Ordering::Less,
            (Keyword::Most(limit), Value::Number(number)) => compare(number, limit) != Ordering::Greater,
            (Keyword::Above(limit), Value::Number(number)) => compare(number, limit) == Ordering::Greater,
            (Keyword::Below(limit), Value::Number(number)) => compare(number, limit) == Ordering::Less,
            (Keyword::MultipleOf(of), Value::Number(number)) => is_multiple(number, of),
            (Keyword::Chars { min, max }, Value::String(text)) => {
                self.pay(text.len() as u64 / 64)?;
                (*min..=*max).contains(&(text.chars().count() as u64))
            }
            (Keyword::Pattern(_, pattern), Value::String(text)) => pattern.matches(text, &mut self.steps)?,
            (Keyword::ItemCount { min, max }, Value::Array(items)) => (*min..=*max).contains(&(items.len() as u64)),
            (Keyword::Unique, Value::Array(items)) => self.same_items(items)?.is_none(),
            (Keyword::MemberCount { min, max }, Value::Object(object)) => {
                (*min..=*max).contains(&(object.len() as u64))
            }
            (Keyword::Required(names), Value::Object(object)) => {
                self.pay(names.len() as u64)?;
                names.iter().all(|name| object.contains_key(name))
            }
            (Keyword::DependentRequired(dependent), Value::Object(object)) => {
                self.pay(dependent.iter().map(|(_, names)| 1 + names.len() as u64).sum())?;
                let fits = |names: &[String]| names.iter().all(|name| object.contains_key(name));
                dependent.iter().all(|(name, names)| !object.contains_key(name) || fits(names))
            }
            _ => true,
        })
    }

    fn all(&mut self, branches: &[Id], value: &Value) -> Checked {
        for branch in branches {
            if !self.fits(*branch, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn any(&mut self, branches: &[Id], value: &Value) -> Checked {
        for branch in branches {
            if self.fits(*branch, value)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn one(&mut self, branches: &[Id], value: &Value) -> Checked {
        let mut found = false;
        for branch in branches {
            if self.fits(*branch, value)? && std::mem::replace(&mut found, true) {
                return Ok(false);
            }
        }
        Ok(found)
    }

    fn items(&mut self, prefix: &[Id], rest: Option<Id>, items: &[Value]) -> Checked {
        for (index, item) in items.iter().enumerate() {
            match prefix.get(index).copied().or(rest) {
                Some(schema) if !self.fits(schema, item)? => return Ok(false),
                Some(_) => {}
                None => break,
            }
        }
        Ok(true)
    }

    fn contains(&mut self, item: Id, (min, max): (u64, u64), items: &[Value]) -> Checked {
        let mut count = 0;
        for value in items {
            count += u64::from(self.fits(item, value)?);
            if count > max {
                return Ok(false);
            }
        }
        Ok(count >= min)
    }

    /// The second of two items that are the same.
    pub(super) fn same_items(&mut self, items: &[Value]) -> Result<Option<usize>, Stop> {
        let mut seen: HashMap<u64, Vec<&Value>> = HashMap::new();
        for (index, item) in items.iter().enumerate() {
            let (hash, parts) = hash(item);
            self.pay(2 * parts)?;
            let alike = seen.entry(hash).or_default();
            if alike.iter().any(|other| same(other, item)) {
                return Ok(Some(index));
            }
            alike.push(item);
        }
        Ok(None)
    }

    fn members(&mut self, members: &'a Members, object: &Map<String, Value>) -> Checked {
        for (name, value) in object {
            if !self.member(members, name, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn member(&mut self, members: &'a Members, name: &str, value: &Value) -> Checked {
        if members.patterns.is_empty() {
            let schema = members.named.get(name).copied().or(members.others);
            return schema.map_or(Ok(true), |schema| self.fits(schema, value));
        }
        let (schemas, others) = self.schemas_of(members, name)?;
        for schema in schemas.into_iter().chain(others) {
            if !self.fits(schema, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The subschemas that apply to a member: those for its name, or the one for all others.
    pub(super) fn schemas_of(&mut self, members: &Members, name: &str) -> Result<(Vec<Id>, Option<Id>), Stop> {
        self.pay(1)?;
        let mut schemas: Vec<Id> = members.named.get(name).copied().into_iter().collect();
        for (pattern, schema) in &members.patterns {
            if pattern.matches(name, &mut self.steps)? {
                schemas.push(*schema);
            }
        }
        let others = members.others.filter(|_| schemas.is_empty());
        Ok((schemas, others))
    }

    fn dependent(&mut self, schemas: &[(String, Id)], object: &Map<String, Value>, value: &Value) -> Checked {
        self.pay(schemas.len() as u64)?;
        for (name, schema) in schemas {
            if object.contains_key(name) && !self.fits(*schema, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn names(&mut self, names: Id, object: &Map<String, Value>) -> Checked {
        for name in object.keys() {
            self.pay(name.len() as u64 / 8)?;
            if !self.fits(names, &Value::String(name.clone()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn other_items(&mut self, schema: Id, id: Id, items: &[Value], value: &Value) -> Checked {
        Ok(self.bad_other_item(schema, id, items, value)?.is_none())
    }

    /// The first item that nothing else looks at and that does not fit.
    pub(super) fn bad_other_item(
        &mut self,
        schema: Id,
        id: Id,
        items: &[Value],
        value: &Value,
    ) -> Result<Option<usize>, Stop> {
        let mut seen = SeenItems::default();
        self.see_items(id, value, &mut seen)?;
        for (index, item) in items.iter().enumerate().skip(seen.first) {
            if !seen.more.contains(&index) && !self.fits(schema, item)? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn other_members(&mut self, schema: Id, id: Id, object: &Map<String, Value>, value: &Value) -> Checked {
        Ok(self.bad_other_members(schema, id, object, value)?.is_empty())
    }

    /// Members that nothing else looks at and that do not fit.
    pub(super) fn bad_other_members<'v>(
        &mut self,
        schema: Id,
        id: Id,
        object: &'v Map<String, Value>,
        value: &'v Value,
    ) -> Result<Vec<&'v str>, Stop> {
        let mut seen = HashSet::new();
        self.see_members(id, value, object, &mut seen)?;
        let mut bad = Vec::new();
        for (name, value) in object {
            if !seen.contains(name.as_str()) && !self.fits(schema, value)? {
                bad.push(name.as_str());
            }
        }
        Ok(bad)
    }

    /// The subschemas below one that apply to the same value and that it fits.
    fn fitting_below(&mut self, keyword: &Keyword, value: &Value) -> Result<Vec<Id>, Stop> {
        let candidates: Vec<Id> = match keyword {
            Keyword::Reference(target) => return Ok(vec![*target]),
            Keyword::All(branches) => return Ok(branches.clone()),
            Keyword::Any(branches) | Keyword::One(branches) => branches.clone(),
            Keyword::If { condition, then, otherwise } => {
                let fits = self.fits(*condition, value)?;
                let branches = [fits.then_some(*condition), if fits { *then } else { *otherwise }];
                return Ok(branches.into_iter().flatten().collect());
            }
            Keyword::Dependent(schemas) => {
                let present = schemas.iter().filter(|(name, _)| value.get(name).is_some());
                return Ok(present.map(|(_, schema)| *schema).collect());
            }
            _ => return Ok(Vec::new()),
        };
        let mut fitting = Vec::new();
        for candidate in candidates {
            if self.fits(candidate, value)? {
                fitting.push(candidate);
            }
        }
        Ok(fitting)
    }

    /// Notes the members that a subschema looks at, which the value fits.
    fn see_members<'v>(
        &mut self,
        id: Id,
        value: &'v Value,
        object: &'v Map<String, Value>,
        seen: &mut HashSet<&'v str>,
    ) -> Result<(), Stop> {
        self.within(value, |check| {
            for keyword in &check.node(id).keywords {
                check.pay(1)?;
                if let Keyword::Members(members) = keyword {
                    for name in object.keys() {
                        let (schemas, others) = check.schemas_of(members, name)?;
                        if !schemas.is_empty() || others.is_some() {
                            seen.insert(name.as_str());
                        }
                    }
                }
                for below in check.fitting_below(keyword, value)? {
                    check.see_members(below, value, object, seen)?;
                    let sees_all = |keyword: &Keyword| matches!(keyword, Keyword::OtherMembers(_));
                    if check.node(below).keywords.iter().any(sees_all) {
                        check.pay(object.len() as u64)?;
                        seen.extend(object.keys().map(String::as_str));
                    }
                }
            }
            Ok(())
        })
    }

    /// Notes the items that a subschema looks at, which the value fits.
    fn see_items(&mut self, id: Id, value: &Value, seen: &mut SeenItems) -> Result<(), Stop> {
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        self.within(value, |check| {
            for keyword in &check.node(id).keywords {
                check.pay(1)?;
                match keyword {
                    Keyword::Items { prefix, rest } => {
                        seen.first = seen.first.max(if rest.is_some() { items.len() } else { prefix.len() });
                    }
                    Keyword::Contains { item, .. } => {
                        for (index, value) in items.iter().enumerate() {
                            if check.fits(*item, value)? {
                                seen.more.insert(index);
                            }
                        }
                    }
                    _ => {}
                }
                for below in check.fitting_below(keyword, value)? {
                    check.see_items(below, value, seen)?;
                    if check.node(below).keywords.iter().any(|keyword| matches!(keyword, Keyword::OtherItems(_))) {
                        seen.first = items.len();
                    }
                }
            }
            Ok(())
        })
    }
}

/// Items of an array that some subschema looks at.
#[derive(Default)]
struct SeenItems {
    /// So many from its beginning.
    first: usize,
    more: HashSet<usize>,
}
