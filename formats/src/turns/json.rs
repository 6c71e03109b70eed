//! JSON in its original form: read level by level and never rebuilt, so numbers keep their digits and members their
//! order. It is written the same way.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::turns::error::{Error, Problem, quote};
use crate::turns::limit::{DEPTH_MAX, ELEMENTS_MAX, MEMBERS_MAX};

/// A value of a text that is known to be valid JSON, and its pointer.
#[derive(Debug, Clone)]
pub(crate) struct Node<'a> {
    pub(crate) text: &'a str,
    pub(crate) pointer: String,
}

/// An object's members. A member that is null counts as missing, because SDKs write unset members as null.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    pub(crate) pointer: String,
    members: HashMap<String, &'a RawValue>,
}

impl<'a> Node<'a> {
    /// Parses `text` as a value. `pointer` is the location of the text itself.
    pub(crate) fn parse(text: &'a str, pointer: &str) -> Result<Self, Error> {
        let value: &RawValue =
            serde_json::from_str(text).map_err(|error| Error::new(pointer, Problem::NotJson(error.to_string())))?;
        if depth(value.get()) > DEPTH_MAX {
            return Err(Error::new(pointer, Problem::TooDeep { max: DEPTH_MAX }));
        }
        Ok(Self { text: value.get(), pointer: pointer.to_owned() })
    }

    pub(crate) fn is_object(&self) -> bool {
        self.text.starts_with('{')
    }

    pub(crate) fn is_array(&self) -> bool {
        self.text.starts_with('[')
    }

    pub(crate) fn is_string(&self) -> bool {
        self.text.starts_with('"')
    }

    /// The type of the value, for messages.
    fn kind(&self) -> &'static str {
        match self.text.as_bytes().first() {
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            Some(b'"') => "a string",
            Some(b't' | b'f') => "a boolean",
            Some(b'n') => "null",
            _ => "a number",
        }
    }

    pub(crate) fn unexpected(&self, expected: &'static str) -> Error {
        Error::new(&self.pointer, Problem::Expected { expected, found: self.kind().to_owned() })
    }

    pub(crate) fn object(&self) -> Result<Object<'a>, Error> {
        if !self.is_object() {
            return Err(self.unexpected("an object"));
        }
        let Members(read) = self.read()?;
        let mut members = HashMap::with_capacity(read.len());
        if read.len() > MEMBERS_MAX {
            return Err(Error::new(&self.pointer, Problem::TooMany { what: "members", max: MEMBERS_MAX }));
        }
        for (name, value) in read {
            if members.contains_key(&name) {
                return Err(Error::new(&self.pointer, Problem::Repeated(quote(&name))));
            }
            members.insert(name, value);
        }
        Ok(Object { pointer: self.pointer.clone(), members })
    }

    pub(crate) fn array(&self) -> Result<Vec<Self>, Error> {
        if !self.is_array() {
            return Err(self.unexpected("an array"));
        }
        let Elements(read) = self.read()?;
        if read.len() > ELEMENTS_MAX {
            return Err(Error::new(&self.pointer, Problem::TooMany { what: "elements", max: ELEMENTS_MAX }));
        }
        let place = |(index, value): (usize, &'a RawValue)| Self {
            text: value.get(),
            pointer: format!("{}/{index}", self.pointer),
        };
        Ok(read.into_iter().enumerate().map(place).collect())
    }

    pub(crate) fn string(&self) -> Result<String, Error> {
        if !self.is_string() {
            return Err(self.unexpected("a string"));
        }
        self.read()
    }

    /// The syntax is valid. Reading a string can still fail because of half a surrogate pair.
    fn read<T: Deserialize<'a>>(&self) -> Result<T, Error> {
        serde_json::from_str(self.text).map_err(|error| Error::new(&self.pointer, Problem::NotJson(error.to_string())))
    }
}

impl<'a> Object<'a> {
    /// The member, unless it is missing or null.
    pub(crate) fn get(&self, name: &str) -> Option<Node<'a>> {
        let value = self.members.get(name).filter(|value| value.get() != "null")?;
        Some(Node { text: value.get(), pointer: format!("{}/{name}", self.pointer) })
    }

    /// Whether the member is present, even if it is null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// The member under the first name that is present: camel case or snake case.
    pub(crate) fn either(&self, names: [&str; 2]) -> Option<Node<'a>> {
        names.into_iter().find_map(|name| self.get(name))
    }

    pub(crate) fn need(&self, name: &'static str) -> Result<Node<'a>, Error> {
        self.get(name).ok_or_else(|| Error::new(&self.pointer, Problem::Missing(name)))
    }

    /// The text of a member if it is present.
    pub(crate) fn string(&self, name: &str) -> Result<Option<String>, Error> {
        self.get(name).map(|node| node.string()).transpose()
    }

    /// The names of the members that are present, but for `known`, in alphabetical order.
    pub(crate) fn names_other_than(&self, known: &[&str]) -> Vec<String> {
        let others =
            self.members.iter().filter(|(name, value)| !known.contains(&name.as_str()) && value.get() != "null");
        let mut names: Vec<String> = others.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// The names of some members in alphabetical order, for an error.
    pub(crate) fn names(&self) -> String {
        let mut names: Vec<&str> = self.members.keys().map(String::as_str).collect();
        names.sort_unstable();
        let shown: Vec<String> = names.iter().take(12).map(|name| format!("{:?}", quote(name))).collect();
        let rest = if names.len() > shown.len() { ", …" } else { "" };
        format!("{}{rest}", shown.join(", "))
    }

    /// The object, for messages.
    pub(crate) fn description(&self) -> String {
        if self.members.is_empty() { "an empty object".into() } else { format!("an object with {}", self.names()) }
    }
}

impl Node<'_> {
    /// The value with the names of its members, for messages.
    pub(crate) fn description(&self) -> String {
        if let Ok(object) = self.object() {
            return object.description();
        }
        match self.array().as_deref() {
            Ok([]) => "an empty array".to_owned(),
            Ok([first, ..]) if !first.is_array() => format!("an array that begins with {}", first.description()),
            Ok(_) | Err(_) => self.kind().to_owned(),
        }
    }
}

/// The nesting depth of arrays and objects in a valid JSON text.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut is_escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Members in order, including repeated ones; at most one more than the limit.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Deserialize<'a> for Members<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'a> Visitor<'a> for Reader {
            type Value = Members<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    if members.len() <= MEMBERS_MAX {
                        members.push(member);
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Elements in order; at most one more than the limit.
struct Elements<'a>(Vec<&'a RawValue>);

impl<'a> Deserialize<'a> for Elements<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'a> Visitor<'a> for Reader {
            type Value = Elements<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'a>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = sequence.next_element()? {
                    if elements.len() <= ELEMENTS_MAX {
                        elements.push(element);
                    }
                }
                Ok(Elements(elements))
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

/// The text if it is valid JSON.
pub(crate) fn raw(text: &str) -> Option<&str> {
    serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get)
}

/// A JSON string.
pub(crate) fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A JSON array of JSON texts.
pub(crate) fn array(elements: &[String]) -> String {
    format!("[{}]", elements.join(","))
}

/// A JSON object of the members that are present; their values are JSON texts.
pub(crate) fn object(members: &[(&str, Option<String>)]) -> String {
    let there = members.iter().filter_map(|(name, value)| Some(format!("{}:{}", string(name), value.as_ref()?)));
    format!("{{{}}}", there.collect::<Vec<_>>().join(","))
}
