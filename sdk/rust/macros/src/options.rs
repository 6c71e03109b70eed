//! The options in the parentheses of the attribute. An option that is unknown here is a method of `About`, so that the
//! compiler checks it and suggests a similar one.

use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, LitStr, Path, Result, Token, parenthesized};

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) name: Option<LitStr>,
    pub(crate) description: Option<Expr>,
    /// The path of the crate `toolyard-tool`, if it has another name.
    pub(crate) sdk: Option<Path>,
    pub(crate) about: Vec<Fact>,
}

/// A method of `About`, and its arguments.
pub(crate) struct Fact {
    pub(crate) name: Ident,
    pub(crate) arguments: Vec<Expr>,
}

impl Parse for Options {
    fn parse(input: ParseStream) -> Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            options.parse_one(input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

impl Options {
    fn parse_one(&mut self, input: ParseStream) -> Result<()> {
        let name = Ident::parse_any(input)?;
        let is_taken = match name.to_string().as_str() {
            "name" => self.name.replace(valued(input)?).is_some(),
            "description" => self.description.replace(valued(input)?).is_some(),
            "crate" => self.sdk.replace(valued(input)?).is_some(),
            _ => {
                let arguments = arguments(input)?;
                self.about.push(Fact { name, arguments });
                return Ok(());
            }
        };
        if is_taken {
            return Err(syn::Error::new(name.span(), format!("{name} is given twice")));
        }
        if let Some(tool) = self.name.as_ref().filter(|tool| !is_tool_name(&tool.value())) {
            return Err(syn::Error::new(tool.span(), "a tool's name is 1 to 128 of A-Z a-z 0-9 _ . -"));
        }
        Ok(())
    }
}

fn valued<T: Parse>(input: ParseStream) -> Result<T> {
    input.parse::<Token![=]>()?;
    input.parse()
}

/// Of `read_only` none, of `attempts_max = 5` one, of `backoff(first, longest)` two.
fn arguments(input: ParseStream) -> Result<Vec<Expr>> {
    if input.peek(Token![=]) {
        return Ok(vec![valued(input)?]);
    }
    if !input.peek(syn::token::Paren) {
        return Ok(Vec::new());
    }
    let inner;
    parenthesized!(inner in input);
    Ok(Punctuated::<Expr, Token![,]>::parse_terminated(&inner)?.into_iter().collect())
}

fn is_tool_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}
