//! Objects, and who may read them: whoever may see the run whose calls' results refer to them. One to which nothing refers, as
//! that of an attempt that was not heard, is nobody's.

use run::{Content, Object, ObjectId, Outcome, Route};

use super::{Refusal, Runs};
use crate::callers::Role;

impl Runs {
    pub(crate) async fn object(&self, id: &ObjectId) -> Result<Object, Refusal> {
        self.caller.must(Role::Read)?;
        let found = match id {
            ObjectId::Result { run, call, pool, .. } => {
                let run = self.known(*run).await.map_err(|refusal| match refusal {
                    Refusal::RunNotFound(_) => Refusal::ObjectNotFound(id.clone()),
                    other => other,
                })?;
                let call = run.run.call(*call);
                // Its pool's workers could store it, and no others.
                let call =
                    call.filter(|call| matches!(&call.spec().route, Route::Pool { pool: own, .. } if own == pool));
                call.and_then(|call| call.outcome()).and_then(|outcome| referred(outcome, id))
            }
            ObjectId::Upload(_) => None,
        };
        found.ok_or_else(|| Refusal::ObjectNotFound(id.clone()))
    }
}

fn referred(outcome: &Outcome, id: &ObjectId) -> Option<Object> {
    let Outcome::Completed(parts) = outcome else { return None };
    parts.iter().find_map(|part| match part {
        Content::Object(object) if object.id == *id => Some((**object).clone()),
        Content::Object(_) | Content::Text(_) | Content::Json(_) | Content::Data { .. } => None,
    })
}
