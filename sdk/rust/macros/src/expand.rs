//! The type that stands for the tool, and its implementation of `Tool`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, format_ident, quote};
use syn::{Expr, Path, Type};

use crate::function::{Description, Function, Parameter};
use crate::options::{Fact, Options};

pub(crate) fn tool(function: &Function<'_>, options: &Options) -> TokenStream {
    let sdk = options.sdk.clone().unwrap_or_else(|| syn::parse_quote!(::toolyard_tool));
    let item = function.item;
    let (vis, plain_name) = (&item.vis, item.sig.ident.to_string());
    let plain_name = plain_name.trim_start_matches("r#");
    let tool = Ident::new(&upper_camel(plain_name), item.sig.ident.span());
    let name = options.name.as_ref().map_or_else(|| quote!(#plain_name), |name| name.to_token_stream());
    let docs = item.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let shared: Vec<&Type> = function.parameters.iter().filter_map(Parameter::shared).collect();
    let body = match shared.is_empty() {
        true => quote!(;),
        false => quote!((#(#vis #shared),*);),
    };
    let (input, input_type) = input(function, &tool, &sdk);
    let (about, call) = (about(function, options, &sdk), call(function, &input_type, &sdk));
    quote! {
        #(#docs)*
        #[derive(Clone)]
        #vis struct #tool #body

        const _: () = {
            #input

            impl ::core::fmt::Debug for #tool {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    f.write_str(<Self as #sdk::Tool>::NAME)
                }
            }

            impl #sdk::Tool for #tool {
                const NAME: &'static str = #name;
                type Input = #input_type;

                fn about(&self) -> #sdk::About {
                    #about
                }

                #call
            }
        };
    }
}

/// The struct of the call's arguments, unless the function names one.
fn input(function: &Function<'_>, tool: &Ident, sdk: &Path) -> (TokenStream, TokenStream) {
    if let Some(given) = function.parameters.iter().find_map(Parameter::input) {
        return (TokenStream::new(), given.to_token_stream());
    }
    let input = format_ident!("{tool}Arguments", span = Span::mixed_site());
    let fields = function.parameters.iter().filter_map(|parameter| match parameter {
        Parameter::Field { name, of, attributes } => Some(quote!(#(#attributes)* #name: #of)),
        Parameter::Context
        | Parameter::OwnContext
        | Parameter::Shared(_)
        | Parameter::Given { .. }
        | Parameter::Input(_) => None,
    });
    let [serde, schemars] =
        ["serde", "schemars"].map(|name| format!("{}::__private::{name}", sdk.to_token_stream()).replace(' ', ""));
    let input_struct = quote! {
        #[allow(missing_debug_implementations, unreachable_pub)]
        #[derive(#sdk::__private::serde::Deserialize, #sdk::__private::schemars::JsonSchema)]
        #[serde(crate = #serde, deny_unknown_fields)]
        #[schemars(crate = #schemars)]
        pub struct #input { #(#fields),* }
    };
    (input_struct, input.to_token_stream())
}

fn about(function: &Function<'_>, options: &Options, sdk: &Path) -> TokenStream {
    let description = match &function.description {
        Description::Docs(text) => quote!(#text),
        Description::Given(text) => text.to_token_stream(),
    };
    let streaming = function.streams.then(|| quote!(.streaming()));
    // A function that is not async blocks its thread, unless all it does is to make a stream.
    let blocking = (function.item.sig.asyncness.is_none() && !function.streams).then(|| quote!(.blocking()));
    let facts = options.about.iter().map(|Fact { name, arguments }| {
        let arguments = arguments.iter().map(|argument| match argument {
            // Values of enums need not be imported.
            Expr::Path(chosen) if chosen.path.get_ident().is_some() => match name.to_string().as_str() {
                "after_partial_output" => quote!(#sdk::AfterPartialOutput::#chosen),
                "concurrency" => quote!(#sdk::Concurrency::#chosen),
                "permission" => quote!(#sdk::Permission::#chosen),
                _ => chosen.to_token_stream(),
            },
            argument => argument.to_token_stream(),
        });
        quote!(.#name(#(#arguments),*))
    });
    let given = function.parameters.iter().filter_map(Parameter::key).map(|key| quote!(.context_key(#key)));
    quote!(#sdk::About::new(#description) #streaming #blocking #(#facts)* #(#given)*)
}

fn call(function: &Function<'_>, input_type: &TokenStream, sdk: &Path) -> TokenStream {
    let (mut arguments, mut fields, mut shared) = (Vec::new(), Vec::new(), 0usize);
    let has_input = function.parameters.iter().any(|parameter| parameter.input().is_some());
    for (index, parameter) in function.parameters.iter().enumerate() {
        arguments.push(match parameter {
            Parameter::Context => quote!(context),
            Parameter::OwnContext => quote!(::core::clone::Clone::clone(context)),
            Parameter::Shared(_) => {
                let place = syn::Index::from(shared);
                shared += 1;
                quote!(::core::clone::Clone::clone(&self.#place))
            }
            Parameter::Given { of, .. } => {
                let key = parameter.key();
                quote!(context.given::<#of>(#key)?)
            }
            Parameter::Input(_) => quote!(input),
            Parameter::Field { name, .. } => {
                let value = format_ident!("argument_{index}", span = Span::mixed_site());
                fields.push(quote!(#name: #value));
                quote!(#value)
            }
        });
    }
    let fields = (!has_input).then(|| quote!(let #input_type { #(#fields),* } = input;));
    let (called, wait) = (&function.item.sig.ident, function.item.sig.asyncness.map(|_| quote!(.await)));
    quote! {
        async fn call(
            &self,
            context: &#sdk::Context,
            input: Self::Input,
        ) -> ::core::result::Result<#sdk::Output, #sdk::ToolError> {
            #[allow(unused_imports)]
            use #sdk::__private::ways::*;
            #fields
            #[allow(clippy::let_unit_value)]
            let answer = #called(#(#arguments),*) #wait;
            #[allow(clippy::let_unit_value)]
            let answer = (&&&&#sdk::__private::Probe::of(&answer)).outcome().split(answer)?;
            (&&&&#sdk::__private::Probe::of(&answer)).form().output(answer, context).await
        }
    }
}

impl<'a> Parameter<'a> {
    fn shared(&self) -> Option<&'a Type> {
        match self {
            Self::Shared(of) => Some(of),
            Self::Context | Self::OwnContext | Self::Given { .. } | Self::Input(_) | Self::Field { .. } => None,
        }
    }

    /// The key of the context that it stands for.
    fn key(&self) -> Option<String> {
        match self {
            Self::Given { name, .. } => Some(name.to_string().trim_start_matches("r#").to_owned()),
            Self::Context | Self::OwnContext | Self::Shared(_) | Self::Input(_) | Self::Field { .. } => None,
        }
    }

    fn input(&self) -> Option<&'a Type> {
        match self {
            Self::Input(of) => Some(of),
            Self::Context | Self::OwnContext | Self::Shared(_) | Self::Given { .. } | Self::Field { .. } => None,
        }
    }
}

/// `get_current_time` as `GetCurrentTime`.
fn upper_camel(name: &str) -> String {
    let mut camel = String::new();
    for word in name.split('_') {
        let mut letters = word.chars();
        camel.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        camel.extend(letters);
    }
    camel
}
