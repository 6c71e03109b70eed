//! `toolyard.v1.ObjectService`.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use proto::convert::object_out;
use proto::v1;
use tonic::{Request, Response, Status};

use super::runs::Streamed;
use crate::api::objects::{Reading, Wanted};
use crate::api::{Api, ApiError};

#[derive(Debug)]
pub(in crate::api) struct ObjectDoor(pub(in crate::api) Api);

#[tonic::async_trait]
impl v1::object_service_server::ObjectService for ObjectDoor {
    type ReadObjectStream = Streamed<v1::ReadObjectResponse>;

    async fn create_object(
        &self,
        request: Request<tonic::Streaming<v1::CreateObjectRequest>>,
    ) -> Result<Response<v1::CreateObjectResponse>, Status> {
        let api = self.0.by(request.extensions());
        let mut pieces = request.into_inner();
        let first = pieces.message().await?.unwrap_or_default();
        let v1::CreateObjectRequest { media_type, tenant, data } = first;
        let rest = pieces.map(|piece| match piece {
            Ok(piece) => Ok(piece.data),
            Err(status) => Err(ApiError::malformed("data", format!("data: the stream failed: {}", status.message()))),
        });
        let pieces = stream::iter([Ok(data)]).chain(rest);
        Ok(Response::new(api.create_object((&media_type, &tenant), pieces).await?))
    }

    async fn delete_object(
        &self,
        request: Request<v1::DeleteObjectRequest>,
    ) -> Result<Response<v1::DeleteObjectResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).delete_object(request.into_inner()).await?))
    }

    async fn create_object_link(
        &self,
        request: Request<v1::CreateObjectLinkRequest>,
    ) -> Result<Response<v1::CreateObjectLinkResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).create_object_link(request.into_inner()).await?))
    }

    async fn read_object(
        &self,
        request: Request<v1::ReadObjectRequest>,
    ) -> Result<Response<Self::ReadObjectStream>, Status> {
        let api = self.0.by(request.extensions());
        let v1::ReadObjectRequest { object_id, offset, length } = request.into_inner();
        let Reading { object, bytes, .. } = api.read_object(&object_id, Wanted::From(offset, length)).await?;
        let about = v1::ReadObjectResponse { object: Some(object_out(&object)), ..v1::ReadObjectResponse::default() };
        let data = bytes.map_ok(|data| v1::ReadObjectResponse { object: None, data }).map_err(Status::from);
        Ok(Response::new(Box::pin(stream::iter([Ok(about)]).chain(data))))
    }
}
