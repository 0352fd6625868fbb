"""What botocore's exceptions and AWS's error codes mean: one place, so that KMS and S3 say the same of credentials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mcpkeys_aws.calls import DeadlinePassed

Kind = Literal["denied", "throttled", "unreachable", "configuration", "answer"]

_MISSING = {"NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError", "UnknownCredentialError"}
_SSO = {"SSOTokenLoadError", "UnauthorizedSSOTokenError", "TokenRetrievalError", "LoginRefreshRequired"}
_LOGIN = {"CredentialRetrievalError", "SSOError", "LoginError", "LoginTokenLoadError", "RefreshWithMFAUnsupportedError"}
_PROFILE = {"ProfileNotFound", "ConfigNotFound", "ConfigParseError", "InvalidConfigError", "InfiniteLoopConfigError"}
_EXPIRED = {"ExpiredTokenException", "ExpiredToken", "TokenRefreshRequired", "RequestExpired"}
_FOREIGN = {
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
    "InvalidToken",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "IncompleteSignature",
    "OptInRequired",
}
_SIGNATURE = {"InvalidSignatureException", "SignatureDoesNotMatch", "InvalidSignature"}
_SKEWED = {"RequestTimeTooSkewed", "RequestInTheFuture"}
_REFUSED = {
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "AllAccessDisabled",
    "AccountProblem",
    "NotAuthorized",
}
_THROTTLED = {
    "ThrottlingException",
    "Throttling",
    "ThrottledException",
    "LimitExceededException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
}
_NEVER_SENT = {"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "SSLError"}
_MAX_SAID = 400


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a call failed, in words that fit into `why` and `next`.

    Attributes:
        kind: `denied` (credentials or rights), `throttled`, `unreachable` (network, late, server error, garbage),
            `configuration` (the AWS configuration on this machine), or `answer`: the service answered with `name`,
            whose meaning depends on the operation.
        name: AWS's error code, or the class of botocore's exception.
        why: one sentence.
        next: what to do about it; empty where the caller knows better.
        code: the stable word for `McpkeysError.code`; empty for the class's own.
    """

    kind: Kind
    name: str
    why: str
    next: str = ""
    code: str = ""

    @property
    def nothing_done(self) -> bool:
        """Whether the request certainly had no effect: refused for its rate, or never sent."""
        return self.kind == "throttled" or self.name in _NEVER_SENT


def answer_of(exc: BaseException) -> tuple[int, str]:
    """HTTP status and AWS error code of a botocore ClientError; (0, "") for anything else."""
    response: Any = getattr(exc, "response", None)
    if not isinstance(response, dict):
        return 0, ""
    status = (response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else 0, str((response.get("Error") or {}).get("Code", ""))


def cause_of(exc: BaseException) -> Cause:
    """Read an exception that a boto3 call raised. Never repeats a request, a response body or a credential."""
    status, code = answer_of(exc)
    if status or code:
        return _of_answer(exc, status, code)
    return _of_class(exc, type(exc).__name__)


def _of_answer(exc: BaseException, status: int, code: str) -> Cause:
    told = f"AWS answered {code}"
    operation = str(getattr(exc, "operation_name", "")) or "the call"
    if code in _EXPIRED:
        return Cause("denied", code, f"the AWS credentials have expired ({code})", _RENEW, "credentials-expired")
    # The messages of signature errors repeat the signed headers, session token included: read, never shown.
    message = str(getattr(exc, "response", {}).get("Error", {}).get("Message", ""))
    if code in _SKEWED or (code in _SIGNATURE and ("expired" in message or "not yet current" in message)):
        return Cause("denied", code, f"this machine's clock is more than 5 minutes off ({code})", _CLOCK, "clock-skew")
    if code in _SIGNATURE:
        return Cause("denied", code, f"the secret access key does not fit the access key id ({code})", _WHO, _INVALID)
    if code in _FOREIGN:
        return Cause("denied", code, f"AWS does not know these credentials ({code})", _WHO, _INVALID)
    if code in _THROTTLED or status == 429:
        return Cause("throttled", code, f"a request quota is used up ({code})", "wait, or raise the quota")
    if code in _REFUSED:
        said = f": {_clean(message)}" if message else ""
        assumed = "AssumeRole" in operation
        step = "the role's trust policy must allow this identity" if assumed else ""
        return Cause("denied", code, f"{told} to {operation}{said}", step)
    if status >= 500 or code.startswith("KMSInternal") or code in {"IDPCommunicationError", "RequestTimeout"}:
        return Cause("unreachable", code, f"{told} (HTTP {status})", "try again; see the AWS health dashboard")
    if code == "403":  # the answer to a HEAD has no body that could say more
        return Cause("denied", code, f"{told} to {operation}")
    if code.isdigit() and int(code) not in (301, 304, 400, 404, 409, 412):
        return Cause(
            "unreachable", code, f"HTTP {code} without an AWS error: a proxy or another server answered", _PROXY
        )
    return Cause("answer", code, told)


def _of_class(exc: BaseException, name: str) -> Cause:
    names = {base.__name__ for base in type(exc).__mro__}
    if isinstance(exc, DeadlinePassed):
        return Cause("unreachable", name, "no answer before the deadline", _NETWORK)
    if names & _MISSING:
        return Cause("denied", name, "no complete AWS credentials were found", _FIND, "credentials-missing")
    if names & _SSO:
        return Cause("denied", name, "the SSO session has expired or was never opened", _LOG_IN, "credentials-expired")
    if names & _LOGIN:
        return Cause("denied", name, f"the credential provider failed ({name})", _FIND, "credentials-missing")
    if names & _PROFILE:
        return Cause(
            "configuration", name, f"the AWS configuration cannot be used ({name})", _FILES, "aws-configuration"
        )
    if "MissingDependencyException" in names:
        return Cause("configuration", name, "these credentials need the AWS CRT", 'pip install "botocore[crt]"')
    if names & {"NoRegionError", "UnknownRegionError", "InvalidRegionError", "EndpointProviderError"}:
        return Cause("configuration", name, f"no endpoint for this region ({name})", "set AWS_REGION", "aws-region")
    if "SSLError" in names or "CA certificate bundle" in str(exc):
        return Cause("unreachable", name, "the server's TLS certificate is not trusted here", _BUNDLE, "tls-untrusted")
    if "ProxyConnectionError" in names:
        return Cause("unreachable", name, "the proxy does not answer", _PROXY)
    if names & {"ConnectTimeoutError", "ReadTimeoutError"}:
        return Cause("unreachable", name, f"the endpoint does not answer ({name})", _NETWORK)
    if "EndpointConnectionError" in names:
        return Cause("unreachable", name, "the endpoint cannot be reached or its name not resolved", _NETWORK)
    if names & {"HTTPClientError", "ConnectionError", "OSError", "IncompleteReadError"}:
        return Cause("unreachable", name, f"the connection broke ({name})", _NETWORK)
    if "ParamValidationError" in names or "ValidationError" in names:
        return Cause("answer", "ValidationException", "botocore refuses the request as malformed")
    return Cause("unreachable", name, f"the answer cannot be read ({name})", _PROXY)


def _clean(message: str) -> str:
    """AWS's own words, for a person: printable, bounded."""
    return "".join(char if char.isprintable() else " " for char in message)[:_MAX_SAID]


_INVALID = "credentials-invalid"
_RENEW = "renew them: aws sso login, a new assume-role session, or restart what provides them"
_LOG_IN = "aws sso login (with --profile where AWS_PROFILE names one)"
_CLOCK = "set the clock (chronyc tracking, timedatectl), then try again"
_WHO = "aws sts get-caller-identity shows which credentials are found; correct or replace them"
_FIND = "set AWS_PROFILE, a role or AWS_ACCESS_KEY_ID; aws sts get-caller-identity must work"
_FILES = "correct AWS_PROFILE and ~/.aws/config; aws sts get-caller-identity must work"
_NETWORK = "check region, name resolution, network path (VPC endpoint) and AWS_ENDPOINT_URL"
_PROXY = "check HTTPS_PROXY, NO_PROXY and AWS_ENDPOINT_URL"
_BUNDLE = "set AWS_CA_BUNDLE to the CA certificate that signs this endpoint or proxy, or correct it"
