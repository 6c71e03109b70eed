//! The function that becomes a tool: the kinds of its arguments, and errors for unsupported ones.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::spanned::Spanned as _;
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, GenericParam, Ident, ItemFn, Lit, Meta, Pat, PatType, Result, ReturnType,
    Type,
};

use crate::options::Options;

pub(crate) struct Function<'a> {
    pub(crate) item: &'a ItemFn,
    pub(crate) description: Description<'a>,
    pub(crate) parameters: Vec<Parameter<'a>>,
    /// It gives its output as a stream.
    pub(crate) streams: bool,
}

pub(crate) enum Description<'a> {
    Docs(String),
    Given(&'a Expr),
}

/// One argument of the function.
pub(crate) enum Parameter<'a> {
    /// `&Context`.
    Context,
    /// `Context`.
    OwnContext,
    /// `Arc<..>`: the state that all calls share.
    Shared(&'a Type),
    /// The value under its name in the context of the call.
    Given { name: &'a Ident, of: &'a Type },
    /// The one struct of all arguments of the call.
    Input(&'a Type),
    /// One argument of the call.
    Field { name: &'a Ident, of: &'a Type, attributes: Vec<&'a Attribute> },
}

impl<'a> Function<'a> {
    pub(crate) fn read(item: &'a ItemFn, options: &'a Options) -> Result<Self> {
        let signature = &item.sig;
        let refused = |span: Span, message: &str| Err(Error::new(span, message));
        if let Some(generic) = signature.generics.params.iter().find(|p| !matches!(p, GenericParam::Lifetime(_))) {
            return refused(generic.span(), "a tool cannot be generic: its schema is that of one type");
        }
        let description = match (&options.description, docs(&item.attrs)) {
            (Some(given), _) => Description::Given(given),
            (None, Some(docs)) => Description::Docs(docs),
            (None, None) => {
                let message = "a tool needs a description for the model: write a doc comment above it";
                return refused(signature.ident.span(), message);
            }
        };
        let parameters = signature.inputs.iter().map(parameter).collect::<Result<Vec<_>>>()?;
        let contexts = parameters.iter().filter(|p| matches!(p, Parameter::Context | Parameter::OwnContext)).count();
        if contexts > 1 {
            return refused(signature.inputs.span(), "the context is given once");
        }
        let inputs = parameters.iter().filter(|p| matches!(p, Parameter::Input(_))).count();
        let fields = parameters.iter().filter(|p| matches!(p, Parameter::Field { .. })).count();
        if inputs > 1 || (inputs == 1 && fields > 0) {
            return refused(
                signature.inputs.span(),
                "an #[input] holds all arguments of the call: put the others into it",
            );
        }
        Ok(Self { item, description, parameters, streams: streams(&signature.output) })
    }
}

/// The function as the compiler takes it: attributes on arguments are ours.
pub(crate) fn plain(item: &ItemFn) -> ItemFn {
    let mut item = item.clone();
    for input in &mut item.sig.inputs {
        if let FnArg::Typed(argument) = input {
            argument.attrs.clear();
        }
    }
    item
}

fn parameter(input: &FnArg) -> Result<Parameter<'_>> {
    let argument = match input {
        FnArg::Typed(argument) => argument,
        FnArg::Receiver(receiver) => {
            let message = "a tool is a free function: take what its calls share as an argument of type Arc<..>";
            return Err(Error::new(receiver.span(), message));
        }
    };
    let PatType { attrs, pat, ty, .. } = argument;
    if let Type::Reference(reference) = &**ty {
        return match last_segment(&reference.elem) {
            Some(name) if name == "Context" && reference.mutability.is_none() => Ok(Parameter::Context),
            _ => {
                let message = "arguments are owned: String for &str, Vec<T> for &[T]; only &Context is borrowed";
                Err(Error::new(ty.span(), message))
            }
        };
    }
    if attrs.iter().any(|attribute| attribute.path().is_ident("context")) {
        return match &**pat {
            Pat::Ident(name) if name.subpat.is_none() && name.by_ref.is_none() => {
                Ok(Parameter::Given { name: &name.ident, of: ty })
            }
            pattern => Err(Error::new(pattern.span(), "what is marked #[context] has the name of its key")),
        };
    }
    match last_segment(ty) {
        Some(name) if name == "Context" => return Ok(Parameter::OwnContext),
        Some(name) if name == "Arc" => return Ok(Parameter::Shared(ty)),
        Some(_) | None => {}
    }
    if attrs.iter().any(|attribute| attribute.path().is_ident("input")) {
        return Ok(Parameter::Input(ty));
    }
    for attribute in attrs {
        if !["doc", "serde", "schemars"].iter().any(|known| attribute.path().is_ident(known)) {
            let message = "an argument takes a doc comment, #[serde(..)], #[schemars(..)], #[context] or #[input]";
            return Err(Error::new(attribute.span(), message));
        }
    }
    match &**pat {
        Pat::Ident(name) if name.subpat.is_none() && name.by_ref.is_none() => {
            Ok(Parameter::Field { name: &name.ident, of: ty, attributes: attrs.iter().collect() })
        }
        pattern => {
            let message = "an argument has a name; mark it #[input] when it is the struct of all arguments";
            Err(Error::new(pattern.span(), message))
        }
    }
}

fn last_segment(of: &Type) -> Option<&Ident> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| &segment.ident),
        Type::Paren(inner) => last_segment(&inner.elem),
        Type::Group(inner) => last_segment(&inner.elem),
        _ => None,
    }
}

fn streams(output: &ReturnType) -> bool {
    fn names_a_stream(tokens: TokenStream) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(ident) => ident == "Stream" || ident == "BoxStream",
            TokenTree::Group(group) => names_a_stream(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => false,
        })
    }
    names_a_stream(output.to_token_stream())
}

/// The text of the doc comments, without the blank that follows each `///`.
fn docs(attributes: &[Attribute]) -> Option<String> {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let lines = lines.filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(doc) => match &doc.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        Meta::Path(_) | Meta::List(_) => None,
    });
    let lines: Vec<String> = lines.map(|line| line.strip_prefix(' ').unwrap_or(&line).to_owned()).collect();
    let text = lines.join("\n").trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why no tool can be made of a function.
    fn refusal(options: &str, item: &str) -> String {
        let item: ItemFn = syn::parse_str(item).unwrap();
        let read = syn::parse_str::<Options>(options).and_then(|options| Function::read(&item, &options).map(|_| ()));
        read.map_or_else(|error| error.to_string(), |()| "none".to_owned())
    }

    #[test]
    fn what_cannot_be_a_tool_is_told_why() {
        let told = |options: &str, item: &str, part: &str| {
            let refusal = refusal(options, &format!("#[doc = \"It does.\"] {item}"));
            assert!(refusal.contains(part), "{item}: {refusal}");
        };
        told("", "async fn f(a: &str) {}", "arguments are owned: String for &str");
        told("", "async fn f(a: &mut Context) {}", "only &Context is borrowed");
        told("", "async fn f<T>(a: T) {}", "cannot be generic");
        told("", "async fn f(&self) {}", "type Arc<..>");
        told("", "async fn f((a, b): (u8, u8)) {}", "mark it #[input]");
        told("", "async fn f(#[input] a: A, b: u8) {}", "holds all arguments");
        told("", "async fn f(#[input] a: A, #[input] b: B) {}", "holds all arguments");
        told("", "async fn f(a: &Context, b: worker::Context) {}", "the context is given once");
        told("", "async fn f(#[default] a: u8) {}", "#[serde(..)]");
        told("", "async fn f(#[context] (a, b): (u8, u8)) {}", "the name of its key");
        told("name = \"a b\"", "async fn f() {}", "1 to 128 of A-Z");
        told("name = \"a\", name = \"b\"", "async fn f() {}", "given twice");
        told("read_only idempotent", "async fn f() {}", "expected `,`");
        told("read_only, attempts_max = 5, backoff(a, b)", "async fn f<'a>(c: &'a Context, a: Vec<u8>) {}", "none");
    }

    #[test]
    fn a_tool_without_a_description_is_refused() {
        assert!(refusal("", "async fn f() {}").contains("write a doc comment"));
        assert!(refusal("", "#[doc = \"  \"] async fn f() {}").contains("write a doc comment"));
        assert_eq!(refusal("description = TEXT", "async fn f() {}"), "none");
    }
}
