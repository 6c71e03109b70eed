//! A forum: topics, posts and replies, by which agents leave messages for each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolyard_tool::{About, Context, Output, Permission, Tool, ToolError};

use crate::shelf::{Shelf, after_of, fresh_id, limit_of, needed, now, text_of};

pub(crate) const TOPICS: &str = "forum/topic/";
pub(crate) const POSTS: &str = "forum/post/";
const TITLE_BYTES_MAX: usize = 500;
const TEXT_BYTES_MAX: usize = 32 * 1024;
const AUTHOR_BYTES_MAX: usize = 200;

/// Keeps a forum in the records of its pool.
#[derive(Debug, Clone, Copy)]
pub struct Forum;

/// What to do in the forum.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForumInput {
    /// What to do. open needs title and text; post needs topic and text; read and delete need topic
    action: ForumAction,
    /// The id of a topic, as open and topics give it
    topic: Option<String>,
    /// The title of a new topic
    title: Option<String>,
    /// The text of a post
    text: Option<String>,
    /// Who writes it
    author: Option<String>,
    /// The id of the post of the topic that is answered
    reply_to: Option<String>,
    /// For delete: only this post, and not the topic
    post: Option<String>,
    /// For topics and read: read on after this `next`
    after: Option<String>,
    /// For topics and read: at most this many, 1 to 50
    #[schemars(range(min = 1, max = 50))]
    limit: Option<u32>,
}

/// What is done in the forum.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForumAction {
    Open,
    Post,
    Topics,
    Read,
    Delete,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Topic {
    pub(crate) title: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    author: String,
    created: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Post {
    pub(crate) text: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    author: String,
    created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply_to: Option<String>,
}

impl Tool for Forum {
    const NAME: &'static str = "forum";
    type Input = ForumInput;

    fn about(&self) -> About {
        About::new(
            "A forum in which agents leave messages for each other and for later: open a topic, post or reply, list \
             topics, read the posts of a topic, delete.",
        )
        .idempotent()
        .category("collaboration")
        .permission(Permission::Write)
        .side_effect_scope("records")
        .parallel_when(r#"{"properties":{"action":{"enum":["topics","read"]}},"required":["action"]}"#)
    }

    async fn call(&self, context: &Context, input: ForumInput) -> Result<Output, ToolError> {
        let topics = Shelf::new(TOPICS);
        match input.action {
            ForumAction::Open => open(context, &topics, input).await,
            ForumAction::Post => {
                let topic = needed(input.topic.clone(), "topic", "post")?;
                let post = written(input, "post")?;
                topics.must_find::<Topic>(context, ("/topic", &topic)).await?;
                let posts = posts_of(&topic);
                if let Some(answered) = &post.reply_to {
                    posts.must_find::<Post>(context, ("/reply_to", answered)).await?;
                }
                let kept = posts.add(context, &fresh_id(context), post).await?;
                Output::json(&serde_json::json!({ "topic": topic, "post": kept }))
            }
            ForumAction::Topics => {
                let (after, limit) = (after_of(input.after)?, limit_of(input.limit));
                Output::json(&topics.list::<Topic>(context, (&after, limit), |_| false, |_| true).await?)
            }
            ForumAction::Read => {
                let topic = needed(input.topic, "topic", "read")?;
                let (after, limit) = (after_of(input.after)?, limit_of(input.limit));
                let found = topics.must_find::<Topic>(context, ("/topic", &topic)).await?;
                let page = posts_of(&topic).list::<Post>(context, (&after, limit), |_| false, |_| true).await?;
                Output::json(&serde_json::json!({ "topic": found, "posts": page.items, "next": page.next }))
            }
            ForumAction::Delete => delete(context, &topics, input).await,
        }
    }
}

/// A topic begins with its first post. The post comes first, so that no topic is without it.
async fn open(context: &Context, topics: &Shelf, input: ForumInput) -> Result<Output, ToolError> {
    let title = text_of(needed(input.title.clone(), "title", "open")?, "title", TITLE_BYTES_MAX)?;
    let post = written(ForumInput { reply_to: None, ..input }, "open")?;
    let (id, author) = (fresh_id(context), post.author.clone());
    let first = posts_of(&id).add(context, &id, post).await?;
    let topic = topics.add(context, &id, Topic { title, author, created: now() }).await?;
    Output::json(&serde_json::json!({ "topic": topic, "post": first }))
}

async fn delete(context: &Context, topics: &Shelf, input: ForumInput) -> Result<Output, ToolError> {
    let topic = needed(input.topic, "topic", "delete")?;
    if let Some(post) = input.post {
        topics.must_find::<Topic>(context, ("/topic", &topic)).await?;
        posts_of(&topic).remove(context, &post).await?;
        return Output::json(&serde_json::json!({ "deleted_post": post }));
    }
    // Without this check an id of another form would lead to posts of other topics.
    if topics.must_find::<Topic>(context, ("/topic", &topic)).await.is_ok() {
        let posts = posts_of(&topic);
        loop {
            let page = posts.list::<Post>(context, ("", crate::shelf::PAGE_MAX), |_| false, |_| true).await?;
            for post in &page.items {
                posts.remove(context, &post.id).await?;
            }
            if page.next.is_none() {
                break;
            }
        }
        topics.remove(context, &topic).await?;
    }
    Output::json(&serde_json::json!({ "deleted": topic }))
}

fn posts_of(topic: &str) -> Shelf {
    Shelf(format!("{POSTS}{topic}/"))
}

fn written(input: ForumInput, action: &str) -> Result<Post, ToolError> {
    let text = text_of(needed(input.text, "text", action)?, "text", TEXT_BYTES_MAX)?;
    let author = match input.author {
        Some(author) => text_of(author, "author", AUTHOR_BYTES_MAX)?,
        None => String::new(),
    };
    Ok(Post { text, author, created: now(), reply_to: input.reply_to })
}
