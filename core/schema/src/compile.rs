//! Compiles the text of a schema into nodes, and reports malformed parts with their paths.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Number, Value};

use super::InvalidSchema;
use super::value::{Types, hash, same};
use crate::pattern::{Budget, Pattern};

/// The errors of an invalid schema.
const FAULTS_MAX: usize = 4;

/// A compiled schema: the first node is the whole.
#[derive(Debug)]
pub(super) struct Nodes(pub(super) Vec<Node>);

pub(super) type Id = u32;

/// One subschema: all of its keywords.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) keywords: Vec<Keyword>,
    /// References lead here, so the same value may get here on several ways.
    pub(super) is_shared: bool,
}

#[derive(Debug)]
pub(super) enum Keyword {
    /// `false`: no value fits.
    Never,
    Type(Types),
    Among(Among),
    Least(Number),
    Most(Number),
    Above(Number),
    Below(Number),
    MultipleOf(Number),
    Chars {
        min: u64,
        max: u64,
    },
    Pattern(String, Pattern),
    Items {
        prefix: Vec<Id>,
        rest: Option<Id>,
    },
    ItemCount {
        min: u64,
        max: u64,
    },
    Contains {
        item: Id,
        min: u64,
        max: u64,
    },
    Unique,
    Members(Members),
    MemberCount {
        min: u64,
        max: u64,
    },
    Required(Vec<String>),
    /// If the first is there, the others must be, too.
    DependentRequired(Vec<(String, Vec<String>)>),
    Dependent(Vec<(String, Id)>),
    Names(Id),
    All(Vec<Id>),
    Any(Vec<Id>),
    One(Vec<Id>),
    Not(Id),
    If {
        condition: Id,
        then: Option<Id>,
        otherwise: Option<Id>,
    },
    Reference(Id),
    OtherItems(Id),
    OtherMembers(Id),
}

/// `enum` and `const`.
#[derive(Debug)]
pub(super) struct Among {
    pub(super) values: Vec<Value>,
    by_hash: HashMap<u64, Vec<usize>>,
}

/// `properties`, `patternProperties` and `additionalProperties`.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) named: BTreeMap<String, Id>,
    pub(super) patterns: Vec<(Pattern, Id)>,
    pub(super) others: Option<Id>,
}

impl Among {
    fn new(values: &[Value]) -> Self {
        let mut by_hash: HashMap<u64, Vec<usize>> = HashMap::with_capacity(values.len());
        let mut kept: Vec<Value> = Vec::with_capacity(values.len());
        for value in values {
            let alike = by_hash.entry(hash(value).0).or_default();
            if !alike.iter().any(|other| same(&kept[*other], value)) {
                alike.push(kept.len());
                kept.push(value.clone());
            }
        }
        Self { values: kept, by_hash }
    }

    /// Whether the value, which has this hash, is one of them.
    pub(super) fn holds(&self, value: &Value, hash: u64) -> bool {
        self.by_hash.get(&hash).is_some_and(|alike| alike.iter().any(|other| same(&self.values[*other], value)))
    }
}

impl Node {
    pub(super) fn has_pattern(&self) -> bool {
        self.keywords.iter().any(|keyword| match keyword {
            Keyword::Pattern(..) => true,
            Keyword::Members(members) => !members.patterns.is_empty(),
            _ => false,
        })
    }
}

/// The position of a subschema below another.
#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    At(&'static str),
    Name(&'static str, &'a str),
    Item(&'static str, usize),
    /// Wherever a reference leads.
    Reference(&'a str),
}

struct Compiler<'a, 'budget> {
    root: &'a Value,
    budget: &'budget mut Budget,
    nodes: Vec<Node>,
    /// By the address of a subschema.
    known: HashMap<*const Value, Id>,
    /// The position of each node. Paths are built from it only for errors, because all of them together may be large.
    places: Vec<Option<(Id, Step<'a>)>>,
    pending: Vec<(Id, &'a Value)>,
    faults: Vec<String>,
}

/// Compiles a schema whose references were checked.
pub(super) fn compile(root: &Value, budget: &mut Budget) -> Result<Nodes, InvalidSchema> {
    let mut compiler = Compiler {
        root,
        budget,
        nodes: Vec::new(),
        known: HashMap::new(),
        places: Vec::new(),
        pending: Vec::new(),
        faults: Vec::new(),
    };
    compiler.node(root, None);
    while let Some((id, schema)) = compiler.pending.pop() {
        let keywords = match schema {
            Value::Bool(true) => Vec::new(),
            Value::Bool(false) => vec![Keyword::Never],
            Value::Object(schema) => Subschema { id, schema, compiler: &mut compiler }.keywords(),
            other => {
                compiler.fault(id, None, &format!("{} is neither an object nor a boolean", super::quote(other)));
                Vec::new()
            }
        };
        if compiler.faults.len() >= FAULTS_MAX {
            break;
        }
        compiler.nodes[id as usize].keywords = keywords;
    }
    if !compiler.faults.is_empty() {
        return Err(InvalidSchema::Invalid(compiler.faults.join("; ")));
    }
    Ok(Nodes(compiler.nodes))
}

impl<'a> Compiler<'a, '_> {
    fn node(&mut self, schema: &'a Value, place: Option<(Id, Step<'a>)>) -> Id {
        if let Some(id) = self.known.get(&std::ptr::from_ref(schema)) {
            return *id;
        }
        let id = Id::try_from(self.nodes.len()).expect("a schema of 64 KiB has fewer subschemas");
        self.known.insert(schema, id);
        self.nodes.push(Node::default());
        self.places.push(place);
        self.pending.push((id, schema));
        id
    }

    fn fault(&mut self, id: Id, keyword: Option<&str>, what: &str) {
        if self.faults.len() >= FAULTS_MAX {
            return;
        }
        let mut steps: Vec<String> = keyword.map(|keyword| format!("/{keyword}")).into_iter().collect();
        let mut at = self.places[id as usize];
        while let Some((above, step)) = at {
            at = self.places[above as usize];
            steps.push(match step {
                Step::At(keyword) => format!("/{keyword}"),
                Step::Name(keyword, name) => format!("/{keyword}/{}", super::escaped(name)),
                Step::Item(keyword, index) => format!("/{keyword}/{index}"),
                Step::Reference(reference) => {
                    at = None;
                    reference.trim_start_matches('#').to_owned()
                }
            });
        }
        let path: String = steps.into_iter().rev().collect();
        self.faults.push(super::cut(format!("at {path:?}: {what}")));
    }
}

/// A subschema while it is compiled.
struct Subschema<'a, 'compiler, 'budget> {
    id: Id,
    schema: &'a Map<String, Value>,
    compiler: &'compiler mut Compiler<'a, 'budget>,
}

impl<'a> Subschema<'a, '_, '_> {
    fn keywords(mut self) -> Vec<Keyword> {
        let mut found = Vec::new();
        self.values(&mut found);
        self.numbers(&mut found);
        self.texts(&mut found);
        self.arrays(&mut found);
        self.objects(&mut found);
        self.others(&mut found);
        for keyword in ["$defs", "definitions"] {
            self.map(keyword);
        }
        found
    }

    fn values(&mut self, found: &mut Vec<Keyword>) {
        if let Some(types) = self.schema.get("type") {
            let names = match types {
                Value::Array(names) if !names.is_empty() => names.iter().collect(),
                one => vec![one],
            };
            let types = names.into_iter().try_fold(Types::NONE, |types, name| {
                let named = name.as_str().and_then(Types::named);
                named.map(|named| types.and(named)).ok_or(name)
            });
            match types {
                Ok(types) => found.push(Keyword::Type(types)),
                Err(name) => self.fault("type", &format!("{} is none of the types", super::quote(name))),
            }
        }
        if let Some(value) = self.schema.get("const") {
            found.push(Keyword::Among(Among::new(std::slice::from_ref(value))));
        }
        match self.schema.get("enum") {
            None => {}
            Some(Value::Array(values)) => found.push(Keyword::Among(Among::new(values))),
            Some(other) => self.fault("enum", &format!("{} is no array", super::quote(other))),
        }
    }

    fn numbers(&mut self, found: &mut Vec<Keyword>) {
        type Limit = fn(Number) -> Keyword;
        let limits: [(&'static str, Limit); 5] = [
            ("minimum", Keyword::Least),
            ("maximum", Keyword::Most),
            ("exclusiveMinimum", Keyword::Above),
            ("exclusiveMaximum", Keyword::Below),
            ("multipleOf", Keyword::MultipleOf),
        ];
        for (keyword, limit) in limits {
            match self.schema.get(keyword) {
                None => {}
                Some(Value::Number(number)) if keyword != "multipleOf" || number.as_f64() > Some(0.0) => {
                    found.push(limit(number.clone()));
                }
                Some(Value::Number(_)) => self.fault(keyword, "it must be greater than 0"),
                Some(other) => self.fault(keyword, &format!("{} is no number", super::quote(other))),
            }
        }
    }

    fn texts(&mut self, found: &mut Vec<Keyword>) {
        if let Some((min, max)) = self.counts("minLength", "maxLength") {
            found.push(Keyword::Chars { min, max });
        }
        if let Some(pattern) = self.text("pattern")
            && let Some(compiled) = self.pattern("pattern", pattern)
        {
            found.push(Keyword::Pattern(pattern.to_owned(), compiled));
        }
    }

    fn arrays(&mut self, found: &mut Vec<Keyword>) {
        if let Some((min, max)) = self.counts("minItems", "maxItems") {
            found.push(Keyword::ItemCount { min, max });
        }
        if self.schema.get("uniqueItems").is_some_and(|unique| match unique {
            Value::Bool(unique) => *unique,
            other => {
                self.fault("uniqueItems", &format!("{} is no boolean", super::quote(other)));
                false
            }
        }) {
            found.push(Keyword::Unique);
        }
        let (prefix, rest) = (self.list("prefixItems"), self.one("items"));
        if prefix.is_some() || rest.is_some() {
            found.push(Keyword::Items { prefix: prefix.unwrap_or_default(), rest });
        }
        let counts = self.counts("minContains", "maxContains");
        if let Some(item) = self.one("contains") {
            let min = if self.schema.contains_key("minContains") { counts.map_or(1, |(min, _)| min) } else { 1 };
            found.push(Keyword::Contains { item, min, max: counts.map_or(u64::MAX, |(_, max)| max) });
        }
    }

    fn objects(&mut self, found: &mut Vec<Keyword>) {
        if let Some((min, max)) = self.counts("minProperties", "maxProperties") {
            found.push(Keyword::MemberCount { min, max });
        }
        if let Some(names) = self.schema.get("required")
            && let Some(names) = self.names("required", names).filter(|names| !names.is_empty())
        {
            found.push(Keyword::Required(names));
        }
        let named = self.map("properties");
        let patterns = self.map("patternProperties").into_iter().flatten();
        let patterns: Vec<_> =
            patterns.filter_map(|(pattern, id)| Some((self.pattern("patternProperties", pattern)?, id))).collect();
        let others = self.one("additionalProperties");
        if named.is_some() || !patterns.is_empty() || others.is_some() {
            let named = named.into_iter().flatten().map(|(name, id)| (name.to_owned(), id)).collect();
            found.push(Keyword::Members(Members { named, patterns, others }));
        }
        if let Some(names) = self.one("propertyNames") {
            found.push(Keyword::Names(names));
        }
        self.dependent(found);
    }

    fn dependent(&mut self, found: &mut Vec<Keyword>) {
        let (mut required, mut schemas) = (Vec::new(), Vec::new());
        // The last is of older drafts, and means either.
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let members = match self.schema.get(keyword) {
                None => continue,
                Some(Value::Object(members)) => members,
                Some(other) => {
                    self.fault(keyword, &format!("{} is no object", super::quote(other)));
                    continue;
                }
            };
            for (name, value) in members {
                match value {
                    names @ Value::Array(_) if keyword != "dependentSchemas" => {
                        required.extend(self.names(keyword, names).map(|names| (name.clone(), names)));
                    }
                    schema if keyword != "dependentRequired" => {
                        let place = Some((self.id, Step::Name(keyword, name)));
                        schemas.push((name.clone(), self.compiler.node(schema, place)));
                    }
                    other => self.fault(keyword, &format!("{} is no array of names", super::quote(other))),
                }
            }
        }
        if !required.is_empty() {
            found.push(Keyword::DependentRequired(required));
        }
        if !schemas.is_empty() {
            found.push(Keyword::Dependent(schemas));
        }
    }

    /// Keywords that apply other subschemas to the same value. `unevaluated*` comes last.
    fn others(&mut self, found: &mut Vec<Keyword>) {
        if let Some(reference) = self.text("$ref") {
            let target = super::references::path(reference).and_then(|path| self.compiler.root.pointer(&path));
            if let Some(target) = target {
                let id = self.compiler.node(target, Some((self.id, Step::Reference(reference))));
                self.compiler.nodes[id as usize].is_shared = true;
                found.push(Keyword::Reference(id));
            }
        }
        type Branches = fn(Vec<Id>) -> Keyword;
        let branches: [(&'static str, Branches); 3] =
            [("allOf", Keyword::All), ("anyOf", Keyword::Any), ("oneOf", Keyword::One)];
        for (keyword, of) in branches {
            found.extend(self.list(keyword).map(of));
        }
        found.extend(self.one("not").map(Keyword::Not));
        let (condition, then, otherwise) = (self.one("if"), self.one("then"), self.one("else"));
        // A condition without branches still counts for `unevaluatedItems` and `unevaluatedProperties`.
        found.extend(condition.map(|condition| Keyword::If { condition, then, otherwise }));
        found.extend(self.one("unevaluatedItems").map(Keyword::OtherItems));
        found.extend(self.one("unevaluatedProperties").map(Keyword::OtherMembers));
    }

    fn fault(&mut self, keyword: &str, what: &str) {
        self.compiler.fault(self.id, Some(keyword), what);
    }

    fn one(&mut self, keyword: &'static str) -> Option<Id> {
        let schema = self.schema.get(keyword)?;
        Some(self.compiler.node(schema, Some((self.id, Step::At(keyword)))))
    }

    fn list(&mut self, keyword: &'static str) -> Option<Vec<Id>> {
        match self.schema.get(keyword)? {
            Value::Array(schemas) if !schemas.is_empty() => {
                let schemas = schemas.iter().enumerate();
                let place = |index| Some((self.id, Step::Item(keyword, index)));
                let nodes = schemas.map(|(index, schema)| self.compiler.node(schema, place(index)));
                Some(nodes.collect())
            }
            other => {
                self.fault(keyword, &format!("{} is no array of subschemas", super::quote(other)));
                None
            }
        }
    }

    fn map(&mut self, keyword: &'static str) -> Option<Vec<(&'a str, Id)>> {
        match self.schema.get(keyword)? {
            Value::Object(schemas) => {
                let nodes = schemas.iter().map(|(name, schema)| {
                    (name.as_str(), self.compiler.node(schema, Some((self.id, Step::Name(keyword, name)))))
                });
                Some(nodes.collect())
            }
            other => {
                self.fault(keyword, &format!("{} is no object of subschemas", super::quote(other)));
                None
            }
        }
    }

    fn text(&mut self, keyword: &'static str) -> Option<&'a str> {
        let value = self.schema.get(keyword)?;
        if value.is_string() {
            return value.as_str();
        }
        self.fault(keyword, &format!("{} is no string", super::quote(value)));
        None
    }

    fn names(&mut self, keyword: &str, names: &Value) -> Option<Vec<String>> {
        let array = names.as_array().into_iter().flatten();
        let texts: Option<Vec<String>> = array.map(|name| name.as_str().map(str::to_owned)).collect();
        let texts = texts.filter(|_| names.is_array());
        if texts.is_none() {
            self.fault(keyword, &format!("{} is no array of names", super::quote(names)));
        }
        texts
    }

    /// Two limits of a count, if either is given.
    fn counts(&mut self, min: &'static str, max: &'static str) -> Option<(u64, u64)> {
        let mut count = |keyword: &'static str| {
            let value = self.schema.get(keyword)?;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float that is no count is 0")]
            let integral =
                value.as_f64().filter(|value| *value >= 0.0 && value.fract() == 0.0).map(|value| value as u64);
            let count = value.as_u64().or(integral);
            if count.is_none() {
                self.fault(keyword, &format!("{} is no count", super::quote(value)));
            }
            count
        };
        let (min, max) = (count(min), count(max));
        (min.is_some() || max.is_some()).then(|| (min.unwrap_or(0), max.unwrap_or(u64::MAX)))
    }

    fn pattern(&mut self, keyword: &str, pattern: &str) -> Option<Pattern> {
        match Pattern::of_schema(pattern, self.compiler.budget) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                self.fault(keyword, &format!("{}: {error}", super::cut(format!("{pattern:?}"))));
                None
            }
        }
    }
}
