//! The HTTP client of the store, which keeps what S3 says when it refuses.
//!
//! `object_store` folds answers into a few kinds of error and a line of text. What to do about one
//! depends on S3's own code (`NoSuchBucket` and `NoSuchKey` are both 404), so refusals are taken out
//! of the stream of answers here, typed, before they are folded; [`super::fault`] finds them again
//! in the chain of sources.

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use thiserror::Error;

/// Bytes of a refusal that are read: S3's are below 2 KiB.
const REFUSAL_BYTES: usize = 16 << 10;

/// Address at which machines of a cloud ask for the credentials of their role, which is the last place that is
/// looked at.
const INSTANCE_METADATA: &str = "169.254.169.254";

/// Answers that `object_store` must see for what they are: not modified, precondition failed. A
/// conflict is none of them: S3 says it while another creation of the same key goes on, which may yet
/// come to nothing.
const CONDITIONS: [u16; 2] = [304, 412];

/// An answer by which a store refuses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{status} {code}: {message}")]
pub(super) struct Refusal {
    /// The status of HTTP.
    pub(super) status: u16,
    /// S3's word for it; empty where the answer has none, as to HEAD.
    pub(super) code: String,
    /// Message of S3 about the refusal.
    pub(super) message: String,
    /// The region that the bucket is in, where the answer says so.
    pub(super) region: Option<String>,
}

/// Neither the options nor the environment have credentials, and the machine has no role.
#[derive(Debug, Error)]
#[error("there are none, and the machine has no role of its own: {0}")]
pub(super) struct NoCredentials(HttpError);

impl Refusal {
    fn parse(status: u16, region: Option<String>, body: &str) -> Self {
        Self {
            status,
            code: element(body, "Code").unwrap_or_default(),
            message: element(body, "Message").unwrap_or_default(),
            region: region.or_else(|| element(body, "Region")),
        }
    }
}

/// The text of the first element of a name. S3's errors are flat, and the texts that are looked at
/// have no entities.
fn element(body: &str, name: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim().to_owned())
}

/// Makes clients that keep refusals.
#[derive(Debug, Default)]
pub(super) struct Connector(ReqwestConnector);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Client(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct Client(HttpClient);

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let for_role = request.uri().host() == Some(INSTANCE_METADATA);
        let response = match self.0.execute(request).await {
            Err(error) if for_role => {
                return Err(HttpError::new(HttpErrorKind::Unknown, NoCredentials(error)));
            }
            answer => answer?,
        };
        let status = response.status();
        if status.is_success() || CONDITIONS.contains(&status.as_u16()) {
            return Ok(response);
        }
        let region = response.headers().get("x-amz-bucket-region");
        let region = region.and_then(|region| region.to_str().ok()).map(str::to_owned);
        let body = text(response.into_body()).await;
        let refusal = Refusal::parse(status.as_u16(), region, &body);
        Err(HttpError::new(HttpErrorKind::Unknown, refusal))
    }
}

/// The beginning of a body, as far as it came.
async fn text(body: HttpResponseBody) -> String {
    let mut bytes = Vec::new();
    let mut stream = body.bytes_stream();
    while let Some(Ok(more)) = stream.next().await {
        bytes.extend_from_slice(&more[..more.len().min(REFUSAL_BYTES - bytes.len())]);
        if bytes.len() == REFUSAL_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_read_as_s3_writes_them() {
        let body = "<?xml version=\"1.0\"?>\n<Error><Code>AuthorizationHeaderMalformed</Code>\
                    <Message>the region 'a' is wrong; expecting 'b'</Message><Region>b</Region></Error>";
        let refusal = Refusal::parse(400, None, body);
        assert_eq!(refusal.code, "AuthorizationHeaderMalformed");
        assert_eq!(refusal.region.as_deref(), Some("b"));
        for nonsense in ["", "<Code>", "</Code><Code>", "<html>nginx</html>", "<Code>x"] {
            assert_eq!(Refusal::parse(502, None, nonsense).code, "");
        }
    }
}
