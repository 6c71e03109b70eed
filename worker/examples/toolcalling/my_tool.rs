//! The smallest tools that say something of their call: `myTool` is a closure of input and context, `MyTool` a type.

use schemars::JsonSchema;
use serde::Deserialize;
use toolyard_tool::{About, Context, InvalidTool, Output, Table, Tool, ToolError};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    /// The input
    input: String,
}

fn answer(Input { input }: Input, context: &Context) -> Output {
    format!("{} got {input:?} as attempt {}", context.tool(), context.attempt()).into()
}

fn about() -> About {
    About::new("My tool.").read_only().category("sample")
}

struct MyTool;

impl Tool for MyTool {
    const NAME: &'static str = "MyTool";
    type Input = Input;

    fn about(&self) -> About {
        about()
    }

    async fn call(&self, context: &Context, input: Input) -> Result<Output, ToolError> {
        Ok(answer(input, context))
    }
}

pub(crate) fn host(table: Table) -> Result<Table, InvalidTool> {
    let function = |input: Input, context: Context| async move { Ok(answer(input, &context)) };
    table.host(MyTool)?.host_fn("myTool", about(), function)
}
