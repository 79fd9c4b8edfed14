//! What the API server would say to a Deployment, asked before it is applied.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use kube::core::{Request, Status};
use kube::{Client, Resource};
use serde_json::Value;

use super::judge::TemplateFound;
use crate::operator::apply::FIELD_MANAGER;
use crate::operator::error::{OperatorError, within};

/// How long a judgement may take: a webhook has up to thirty seconds of its own.
const LONGEST_JUDGEMENT: Duration = Duration::from_secs(35);

/// What the API server says to a Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It takes it, with these warnings.
    Accepted(Vec<String>),
    /// It does not: the sentence says why.
    Refused(String),
}

/// Asks for a Deployment, and changes nothing. Warnings come as HTTP headers, which
/// the usual calls of the client do not show.
pub(super) async fn ask(client: &Client, namespace: &str, manifest: &Value) -> Result<Verdict, OperatorError> {
    const ACTION: &str = "judge the Deployment";
    let failed = OperatorError::api(ACTION);
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let params = PatchParams::apply(FIELD_MANAGER).force().dry_run();
    let request = Request::new(Deployment::url_path(&(), Some(namespace)))
        .patch(name, &params, &Patch::Apply(manifest))
        .map_err(|error| failed(kube::Error::BuildRequest(error)))?;
    let response = within(LONGEST_JUDGEMENT, client.send(request.map(Body::from)), ACTION).await?;
    let code = response.status();
    if code.is_success() {
        let headers = response.headers().get_all("warning");
        let warnings = headers.iter().filter_map(|header| header.to_str().ok()).filter_map(text_of).collect();
        return Ok(Verdict::Accepted(warnings));
    }
    let bytes = response.into_body().collect_bytes().await.map_err(&failed)?;
    let status: Status = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| Status::failure(&String::from_utf8_lossy(&bytes), "").with_code(code.as_u16()));
    if is_refusal(code.as_u16(), &status.message) {
        return Ok(Verdict::Refused(status.message));
    }
    Err(failed(kube::Error::Api(status.boxed())))
}

/// What an answer that was no yes says of the template; `None` if there was no answer at all.
pub(super) fn read(error: &OperatorError) -> Option<TemplateFound> {
    let OperatorError::Api { source, .. } = error else { return None };
    let kube::Error::Api(status) = &**source else { return None };
    Some(match is_refusal(status.code, &status.message) {
        true => TemplateFound::Refused(status.message.clone()),
        false => TemplateFound::Unanswered(error.to_string()),
    })
}

/// Whether the same Deployment would be refused again. The API server has no code of its own for a field
/// that it does not know: an apply of one is an internal error to it.
fn is_refusal(code: u16, message: &str) -> bool {
    match code {
        408 | 409 | 429 => false,
        400..=499 => true,
        500 => message.contains("field not declared in schema") || message.contains("failed to create typed"),
        _ => false,
    }
}

/// The text of a warning: `299 - "text"`, with quotes escaped.
fn text_of(header: &str) -> Option<String> {
    let quoted = header.split_once('"')?.1.rsplit_once('"')?.0;
    let mut text = String::with_capacity(quoted.len());
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next() {
        text.push(if letter == '\\' { letters.next()? } else { letter });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_read_as_it_was_meant() {
        let header = r#"299 - "would violate PodSecurity \"restricted:latest\": x""#;
        assert_eq!(text_of(header).as_deref(), Some(r#"would violate PodSecurity "restricted:latest": x"#));
        assert_eq!(text_of("299 - nothing"), None);
    }

    #[test]
    fn a_refusal_is_told_from_a_server_that_has_other_worries() {
        assert!(is_refusal(422, "spec.x: Invalid value") && is_refusal(403, "denied") && is_refusal(400, ""));
        assert!(is_refusal(500, "failed to create typed patch object: .spec.x: field not declared in schema"));
        assert!(!is_refusal(500, "etcdserver: request timed out") && !is_refusal(429, "") && !is_refusal(503, ""));
    }

    #[test]
    fn an_answer_that_is_no_yes_says_something_of_the_template_and_silence_does_not() {
        let answered = |code: u16| {
            let status = Status::failure("a policy says no", "Because").with_code(code);
            OperatorError::api("apply the Deployment")(kube::Error::Api(status.boxed()))
        };
        assert_eq!(read(&answered(422)), Some(TemplateFound::Refused("a policy says no".to_owned())));
        let why = "the API server did not apply the Deployment: a policy says no".to_owned();
        assert_eq!(read(&answered(500)), Some(TemplateFound::Unanswered(why)));
        assert_eq!(read(&OperatorError::TooLong(std::time::Duration::ZERO)), None);
    }
}
