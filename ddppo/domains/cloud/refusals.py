"""The errors of services that the simulator does not give: calls that would leave it, and values that it fails at.

moto raises a Python error at some values that a service would refuse: an attribute of a queue that is no number, a name
in place of an ARN. `invalid` says what the service answers; tests/domains/cloud/test_cloud_refusals.py looks for more,
by random parameters of every operation.
"""

from typing import Any

from ddppo.domains.cloud.cli import ApiCall
from ddppo.domains.cloud.folder import CommandError

PROTOCOLS = ("sqs", "email")  # allowed for subscriptions; moto would really call an http endpoint
# Error code of a service for a value that it cannot take.
INVALID = {
    "s3api": "InvalidArgument",
    "dynamodb": "ValidationException",
    "sqs": "InvalidAttributeValue",
    "sns": "InvalidParameter",
    "iam": "ValidationError",
    "ssm": "ValidationException",
    "secretsmanager": "InvalidParameterException",
}
# The same for a token that a service did not give.
INVALID_TOKEN = {"ssm": "InvalidNextToken", "secretsmanager": "InvalidNextTokenException"}
TOKENS = ("NextToken", "Marker", "ContinuationToken")
# Attributes of queues that are no numbers.
TEXTS = (
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoQueue",
    "FifoThroughputLimit",
    "KmsMasterKeyId",
    "Policy",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "SqsManagedSseEnabled",
)


def check(call: ApiCall, queues: str) -> None:
    """Raise CommandError if a call would reach outside the account, whose queues' URLs begin with `queues`."""
    url = call.params.get("QueueUrl")
    if isinstance(url, str) and "/" in url and not url.startswith(queues):
        raise refused(call, "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
    # moto would drop these, and make a rule for objects of all sizes.
    if call.operation == "put-bucket-lifecycle-configuration" and "ObjectSize" in str(call.params):
        raise refused(call, "NotImplemented", "rules for objects of some size are not simulated")
    if call.operation == "subscribe" and call.params.get("Protocol") not in PROTOCOLS:
        raise refused(call, "InvalidParameter", f"Invalid parameter: Protocol: here one of {PROTOCOLS}")


def refused(call: ApiCall, code: str, why: str) -> CommandError:
    """Return the error of a service as the AWS CLI prints it."""
    return CommandError(
        f"An error occurred ({code}) when calling the {call.api_name} operation: {why}", 254, code
    )


def invalid(call: ApiCall) -> CommandError:
    """Return the error of a service for a call at which the simulator failed."""
    error = refused(call, *_why(call))
    error.broke = True
    return error


def _why(call: ApiCall) -> tuple[str, str]:
    """Return the code and the message for what is probably wrong in a call."""
    code, params = INVALID[call.service], call.params
    if call.service == "sqs":
        for name, value in _attributes(params).items():
            if name not in TEXTS and not str(value).isdigit():
                return code, f"Invalid value for the parameter {name}."
    if call.service == "secretsmanager" and "SecretId" in params and call.operation.startswith("list"):
        return "ResourceNotFoundException", "Secrets Manager can't find the specified secret."
    source = params.get("CopySource")
    if isinstance(source, str) and "/" not in source.strip("/"):
        return code, "Copy Source must mention the source bucket and key: /sourcebucket/sourcekey"
    for name in TOKENS:
        if name in params:
            return INVALID_TOKEN.get(call.service, code), f"Invalid token: {name}"
    for name, value in params.items():
        if name.endswith("Arn") and str(value).count(":") < 5:
            parts = len(str(value).split(":"))
            return (
                code,
                f"Invalid parameter: {name} Reason: An ARN must have at least 6 elements, not {parts}",
            )
    if call.operation == "publish" and not {"TopicArn", "TargetArn", "PhoneNumber"} & set(params):
        return code, "Invalid parameter: TopicArn or TargetArn Reason: no value for required parameter"
    return code, "One or more parameter values were invalid"


def _attributes(params: dict[str, Any]) -> dict[str, Any]:
    found = params.get("Attributes")
    return found if isinstance(found, dict) else {}
