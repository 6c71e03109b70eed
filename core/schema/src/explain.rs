//! Explains why and where a value does not match. It examines only parts that do not match, and of a union only the
//! closest alternative, so an explanation costs about as much as the check.

use std::collections::BTreeSet;

use run::Violation;
use serde_json::Value;

use super::compile::{Among, Id, Keyword, Members};
use super::evaluate::{Check, Stop};
use super::value::hash;
use super::{VIOLATIONS_MAX, cut, quote};

/// Alternatives of a union that are compared.
const ALTERNATIVES_MAX: usize = 256;
/// Subschemas of one alternative that are looked at when alternatives are compared.
const PARTS_MAX: usize = 32;
/// Values that a violation names.
const NAMED_MAX: usize = 8;

/// Explains why a value does not fit.
pub(super) struct Explainer<'a, 'v> {
    pub(super) check: Check<'a>,
    pub(super) violations: Vec<Violation>,
    path: Vec<Place<'v>>,
}

#[derive(Clone, Copy)]
enum Place<'v> {
    Member(&'v str),
    Item(usize),
}

/// How near a value comes to an alternative.
#[derive(Default)]
struct Nearness<'v> {
    /// Its type, or the value itself, is another.
    is_other: bool,
    /// Members whose value selects an alternative.
    right_tags: usize,
    wrong_tags: Vec<&'v str>,
    missing: usize,
    unknown: usize,
}

type Explained = Result<(), Stop>;

impl<'a, 'v> Explainer<'a, 'v> {
    pub(super) fn new(check: Check<'a>) -> Self {
        Self { check, violations: Vec::new(), path: Vec::new() }
    }

    pub(super) fn explain(&mut self, id: Id, value: &'v Value) -> Explained {
        for keyword in &self.check.node(id).keywords {
            if self.violations.len() >= VIOLATIONS_MAX {
                break;
            }
            self.check.pay(1)?;
            if !self.check.keyword(keyword, id, value)? {
                self.keyword(keyword, id, value)?;
            }
        }
        Ok(())
    }

    fn deeper(&mut self, place: Place<'v>, id: Id, value: &'v Value) -> Explained {
        self.path.push(place);
        let explained = self.same(id, value);
        self.path.pop();
        explained
    }

    /// Of the same value. Recursion is bounded as that of the check is.
    fn same(&mut self, id: Id, value: &'v Value) -> Explained {
        self.check.enter(value)?;
        let explained = self.explain(id, value);
        self.check.leave();
        explained
    }

    fn violation(&mut self, message: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            let path = self.path.iter().map(|place| match place {
                Place::Member(name) => format!("/{}", super::escaped(name)),
                Place::Item(index) => format!("/{index}"),
            });
            self.violations.push(Violation { path: cut(path.collect()), message: cut(message) });
        }
    }

    fn violation_at(&mut self, place: Place<'v>, message: String) {
        self.path.push(place);
        self.violation(message);
        self.path.pop();
    }

    fn keyword(&mut self, keyword: &'a Keyword, id: Id, value: &'v Value) -> Explained {
        match (keyword, value) {
            (Keyword::All(branches), _) => self.all(branches, value),
            (Keyword::Any(branches), _) => self.union(branches, value),
            (Keyword::One(branches), _) => self.one(branches, value),
            (Keyword::Reference(target), _) => self.same(*target, value),
            (Keyword::If { condition, then, otherwise }, _) => {
                let branch = if self.check.fits(*condition, value)? { then } else { otherwise };
                branch.map_or(Ok(()), |branch| self.same(branch, value))
            }
            (Keyword::Dependent(schemas), _) => {
                let present: Vec<Id> =
                    schemas.iter().filter(|(name, _)| value.get(name).is_some()).map(|(_, id)| *id).collect();
                self.all(&present, value)
            }
            (Keyword::Items { prefix, rest }, Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    if let Some(schema) = prefix.get(index).copied().or(*rest)
                        && self.violations.len() < VIOLATIONS_MAX
                        && !self.check.fits(schema, item)?
                    {
                        self.deeper(Place::Item(index), schema, item)?;
                    }
                }
                Ok(())
            }
            (Keyword::Members(members), Value::Object(_)) => self.members(members, value),
            (Keyword::OtherItems(schema), Value::Array(items)) => {
                match self.check.bad_other_item(*schema, id, items, value)? {
                    Some(index) => self.deeper(Place::Item(index), *schema, &items[index]),
                    None => Ok(()),
                }
            }
            (Keyword::OtherMembers(schema), Value::Object(object)) => {
                for name in self.check.bad_other_members(*schema, id, object, value)? {
                    self.member(name, *schema, &object[name])?;
                }
                Ok(())
            }
            (Keyword::Names(names), Value::Object(object)) => {
                for name in object.keys() {
                    let named = Value::String(name.clone());
                    if !self.check.fits(*names, &named)? {
                        self.violation_at(Place::Member(name), format!("the name {} is not allowed", quote(&named)));
                    }
                }
                Ok(())
            }
            (Keyword::Unique, Value::Array(items)) => {
                if let Some(index) = self.check.same_items(items)? {
                    let message = format!("{} is there twice, and items must be unique", quote(&items[index]));
                    self.violation_at(Place::Item(index), message);
                }
                Ok(())
            }
            (keyword, value) => {
                self.leaf(keyword, value);
                Ok(())
            }
        }
    }

    fn leaf(&mut self, keyword: &'a Keyword, value: &'v Value) {
        let quoted = quote(value);
        match (keyword, value) {
            (Keyword::Type(types), _) => {
                self.violation(format!("{quoted} is not of type {}", types.names().join(" or ")));
            }
            (Keyword::Among(among), _) => self.violation(not_among(&quoted, among.values.iter())),
            (Keyword::Least(limit), _) => self.violation(format!("{quoted} is less than the minimum of {limit}")),
            (Keyword::Most(limit), _) => self.violation(format!("{quoted} is greater than the maximum of {limit}")),
            (Keyword::Above(limit), _) => self.violation(format!("{quoted} is not greater than {limit}")),
            (Keyword::Below(limit), _) => self.violation(format!("{quoted} is not less than {limit}")),
            (Keyword::MultipleOf(of), _) => self.violation(format!("{quoted} is not a multiple of {of}")),
            (Keyword::Chars { min, max }, Value::String(text)) => {
                self.violation(out_of(text.chars().count(), "characters", *min, *max));
            }
            (Keyword::ItemCount { min, max }, Value::Array(items)) => {
                self.violation(out_of(items.len(), "items", *min, *max));
            }
            (Keyword::MemberCount { min, max }, Value::Object(members)) => {
                self.violation(out_of(members.len(), "members", *min, *max));
            }
            (Keyword::Contains { min, max, .. }, _) => {
                let most = if *max == u64::MAX { String::new() } else { format!(" and at most {max}") };
                self.violation(format!("at least {min}{most} of the items must fit what `contains` asks for"));
            }
            (Keyword::Pattern(pattern, _), _) => self.violation(format!("{quoted} does not match {pattern:?}")),
            (Keyword::Required(names), Value::Object(members)) => {
                for name in names.iter().filter(|name| !members.contains_key(*name)) {
                    self.violation(format!("{} is a required property", quote(&Value::from(name.as_str()))));
                }
            }
            (Keyword::DependentRequired(dependent), Value::Object(members)) => {
                for (name, names) in dependent.iter().filter(|(name, _)| members.contains_key(name)) {
                    for missing in names.iter().filter(|name| !members.contains_key(*name)) {
                        self.violation(format!("{missing:?} is a required property beside {name:?}"));
                    }
                }
            }
            (Keyword::Not(_), _) => self.violation(format!("{quoted} fits what `not` excludes")),
            _ => self.violation(format!("{quoted} is not allowed here")),
        }
    }

    fn all(&mut self, branches: &[Id], value: &'v Value) -> Explained {
        for branch in branches {
            if !self.check.fits(*branch, value)? {
                self.same(*branch, value)?;
            }
        }
        Ok(())
    }

    fn members(&mut self, members: &'a Members, value: &'v Value) -> Explained {
        for (name, value) in value.as_object().into_iter().flatten() {
            let (schemas, others) = self.check.schemas_of(members, name)?;
            for schema in schemas.into_iter().chain(others) {
                if self.violations.len() < VIOLATIONS_MAX && !self.check.fits(schema, value)? {
                    self.member(name, schema, value)?;
                }
            }
        }
        Ok(())
    }

    fn member(&mut self, name: &'v str, schema: Id, value: &'v Value) -> Explained {
        if let [Keyword::Never] = &*self.check.node(schema).keywords {
            let name_quoted = quote(&Value::from(name));
            self.violation_at(Place::Member(name), format!("{name_quoted} is not a property that is allowed here"));
            return Ok(());
        }
        self.deeper(Place::Member(name), schema, value)
    }

    fn one(&mut self, branches: &[Id], value: &'v Value) -> Explained {
        let mut fitting = 0;
        for branch in branches {
            fitting += usize::from(self.check.fits(*branch, value)?);
        }
        match fitting {
            0 => self.union(branches, value),
            fitting => {
                self.violation(format!("{} fits {fitting} alternatives, and only one may fit", quote(value)));
                Ok(())
            }
        }
    }

    /// A value that fits none of some alternatives.
    fn union(&mut self, branches: &[Id], value: &'v Value) -> Explained {
        let alternatives = self.alternatives(branches)?;
        let mut candidates = Vec::new();
        for alternative in &alternatives {
            let nearness = self.nearness(*alternative, value)?;
            if !nearness.is_other {
                candidates.push((*alternative, nearness));
            }
        }
        let Some((best, nearness)) = candidates.iter().max_by_key(|(alternative, nearness)| {
            let Nearness { right_tags, wrong_tags, missing, unknown, .. } = nearness;
            // Of those that are as near, the first.
            (right_tags, std::cmp::Reverse((wrong_tags.len() + missing + unknown, *alternative)))
        }) else {
            let wanted = self.wanted(&alternatives)?;
            self.violation(format!("{} fits none of the alternatives{wanted}", quote(value)));
            return Ok(());
        };
        if nearness.right_tags == 0
            && let Some(tag) = nearness.wrong_tags.first()
        {
            let mut allowed = Vec::new();
            for (alternative, _) in &candidates {
                allowed.extend(self.tag(*alternative, tag)?.into_iter().flat_map(|among| &among.values));
            }
            let quoted = quote(&value[*tag]);
            self.violation_at(Place::Member(tag), not_among(&quoted, allowed.into_iter()));
            return Ok(());
        }
        let before = self.violations.len();
        self.same(*best, value)?;
        if self.violations.len() == before {
            self.violation(format!("{} fits none of {} alternatives", quote(value), alternatives.len()));
        }
        Ok(())
    }

    /// The alternatives, with those of unions among them.
    fn alternatives(&mut self, branches: &[Id]) -> Result<Vec<Id>, Stop> {
        let (mut found, mut left) = (Vec::new(), branches.iter().rev().copied().collect::<Vec<_>>());
        let mut met = BTreeSet::new();
        while let Some(id) = left.pop().filter(|_| found.len() < ALTERNATIVES_MAX) {
            self.check.pay(1)?;
            match &*self.check.node(id).keywords {
                _ if !met.insert(id) => {}
                [Keyword::Reference(target)] => left.push(*target),
                [Keyword::Any(more) | Keyword::One(more)] => left.extend(more.iter().rev()),
                _ => found.push(id),
            }
        }
        Ok(found)
    }

    /// The keywords of an alternative: its own, and those of its references.
    fn parts(&mut self, id: Id) -> Result<Vec<&'a Keyword>, Stop> {
        let (mut parts, mut left, mut looked) = (Vec::new(), vec![id], 0);
        while let Some(id) = left.pop().filter(|_| looked < PARTS_MAX) {
            looked += 1;
            let node = self.check.node(id);
            self.check.pay(1 + node.keywords.len() as u64)?;
            for keyword in &node.keywords {
                match keyword {
                    Keyword::Reference(target) => left.push(*target),
                    Keyword::All(branches) => left.extend(branches),
                    other => parts.push(other),
                }
            }
        }
        Ok(parts)
    }

    /// The allowed values of a member, if an alternative lists them.
    fn tag(&mut self, alternative: Id, name: &str) -> Result<Option<&'a Among>, Stop> {
        for part in self.parts(alternative)? {
            if let Keyword::Members(members) = part
                && let Some(member) = members.named.get(name)
            {
                let tag = self.parts(*member)?.into_iter().find_map(|part| match part {
                    Keyword::Among(among) => Some(among),
                    _ => None,
                });
                return Ok(tag);
            }
        }
        Ok(None)
    }

    fn nearness(&mut self, id: Id, value: &'v Value) -> Result<Nearness<'v>, Stop> {
        let mut near = Nearness::default();
        for part in self.parts(id)? {
            match (part, value) {
                (Keyword::Never, _) => near.is_other = true,
                (Keyword::Type(types), _) => near.is_other |= !types.holds(value),
                (Keyword::Among(_), _) => near.is_other |= !self.check.keyword(part, id, value)?,
                (Keyword::Required(names), Value::Object(members)) => {
                    self.check.pay(names.len() as u64)?;
                    near.missing += names.iter().filter(|name| !members.contains_key(*name)).count();
                }
                (Keyword::Members(known), Value::Object(members)) => {
                    for (name, value) in members {
                        let (schemas, others) = self.check.schemas_of(known, name)?;
                        let is_refused =
                            others.is_some_and(|id| matches!(&*self.check.node(id).keywords, [Keyword::Never]));
                        near.unknown += usize::from(is_refused);
                        for schema in schemas {
                            self.compare_tag(schema, name, value, &mut near)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(near)
    }

    fn compare_tag(&mut self, schema: Id, name: &'v str, value: &'v Value, near: &mut Nearness<'v>) -> Explained {
        for part in self.parts(schema)? {
            if let Keyword::Among(among) = part {
                let (hash, parts) = hash(value);
                self.check.pay(2 * parts)?;
                match among.holds(value, hash) {
                    true => near.right_tags += 1,
                    false => near.wrong_tags.push(name),
                }
            }
        }
        Ok(())
    }

    /// The types and values that alternatives want.
    fn wanted(&mut self, alternatives: &[Id]) -> Result<String, Stop> {
        let mut wanted: Vec<String> = Vec::new();
        for alternative in alternatives.iter().take(PARTS_MAX) {
            for part in self.parts(*alternative)? {
                let one = match part {
                    Keyword::Type(types) => types.names().join(" or "),
                    Keyword::Among(among) => among.values.first().map(quote).unwrap_or_default(),
                    _ => continue,
                };
                if !wanted.contains(&one) {
                    wanted.push(one);
                }
            }
        }
        let more = if wanted.len() > NAMED_MAX { ", …" } else { "" };
        wanted.truncate(NAMED_MAX);
        Ok(if wanted.is_empty() { String::new() } else { format!(": {}{more}", wanted.join(", ")) })
    }
}

fn not_among<'a>(quoted: &str, values: impl Iterator<Item = &'a Value>) -> String {
    let mut named: Vec<String> = values.take(NAMED_MAX + 1).map(quote).collect();
    if named.len() > NAMED_MAX {
        named[NAMED_MAX] = "…".to_owned();
    }
    match &*named {
        [one] => format!("{quoted} is not {one}"),
        _ => format!("{quoted} is not one of {}", named.join(", ")),
    }
}

fn out_of(count: usize, what: &str, min: u64, max: u64) -> String {
    if (count as u64) < min {
        format!("{count} {what} are too few: at least {min} are needed")
    } else {
        format!("{count} {what} are too many: at most {max} are taken")
    }
}
