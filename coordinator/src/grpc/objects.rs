//! `toolyard.v1.ObjectService`.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use proto::convert::object_out;
use proto::v1;
use tonic::{Request, Response, Status};

use super::runs::Streamed;
use crate::door::Door;
use crate::door::objects::{Reading, Wanted};

#[derive(Debug)]
pub(super) struct ObjectDoor(pub(super) Door);

#[tonic::async_trait]
impl v1::object_service_server::ObjectService for ObjectDoor {
    type ReadObjectStream = Streamed<v1::ReadObjectResponse>;

    async fn read_object(
        &self,
        request: Request<v1::ReadObjectRequest>,
    ) -> Result<Response<Self::ReadObjectStream>, Status> {
        let door = self.0.by(request.extensions());
        let v1::ReadObjectRequest { object_id, offset, length } = request.into_inner();
        let Reading { object, bytes, .. } = door.read_object(&object_id, Wanted::From(offset, length)).await?;
        let about = v1::ReadObjectResponse { object: Some(object_out(&object)), ..v1::ReadObjectResponse::default() };
        let data = bytes.map_ok(|data| v1::ReadObjectResponse { object: None, data }).map_err(Status::from);
        Ok(Response::new(Box::pin(stream::iter([Ok(about)]).chain(data))))
    }
}
