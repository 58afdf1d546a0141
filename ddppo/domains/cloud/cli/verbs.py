"""What may be typed: services and operations. All else does not exist here, the simulator's own routes included."""

SERVICES = {  # as the AWS CLI calls them -> as boto3 does
    "s3api": "s3",
    "dynamodb": "dynamodb",
    "sqs": "sqs",
    "sns": "sns",
    "iam": "iam",
    "ssm": "ssm",
    "secretsmanager": "secretsmanager",
}
READS = {
    "s3api": """list-buckets head-bucket get-bucket-location get-bucket-versioning get-bucket-tagging
        get-bucket-policy get-bucket-encryption get-public-access-block get-bucket-lifecycle-configuration
        get-bucket-notification-configuration list-objects-v2 head-object get-object get-object-tagging""",
    "dynamodb": """list-tables describe-table get-item query scan describe-time-to-live list-tags-of-resource
        describe-continuous-backups""",
    "sqs": "list-queues get-queue-url get-queue-attributes list-queue-tags",
    "sns": """list-topics get-topic-attributes list-subscriptions list-subscriptions-by-topic
        get-subscription-attributes list-tags-for-resource""",
    "iam": """list-users get-user list-groups get-group list-groups-for-user list-roles get-role list-policies
        get-policy get-policy-version list-attached-role-policies list-attached-user-policies
        list-attached-group-policies list-role-policies get-role-policy list-access-keys list-role-tags
        list-user-tags""",
    "ssm": """get-parameter get-parameters get-parameters-by-path describe-parameters list-tags-for-resource
        get-parameter-history""",
    "secretsmanager": """list-secrets describe-secret get-secret-value list-secret-version-ids
        get-resource-policy""",
}
WRITES = {
    "s3api": """create-bucket delete-bucket put-bucket-versioning put-bucket-tagging delete-bucket-tagging
        put-bucket-policy delete-bucket-policy put-bucket-encryption delete-bucket-encryption
        put-public-access-block delete-public-access-block put-bucket-lifecycle-configuration
        delete-bucket-lifecycle put-bucket-notification-configuration put-object delete-object copy-object
        put-object-tagging""",
    "dynamodb": """create-table delete-table update-table put-item update-item delete-item update-time-to-live
        tag-resource untag-resource update-continuous-backups""",
    "sqs": """create-queue delete-queue set-queue-attributes purge-queue send-message receive-message
        delete-message tag-queue untag-queue""",
    "sns": """create-topic delete-topic set-topic-attributes subscribe unsubscribe set-subscription-attributes
        publish tag-resource untag-resource""",
    "iam": """create-user delete-user create-group delete-group add-user-to-group remove-user-from-group
        create-role delete-role update-assume-role-policy create-policy delete-policy attach-role-policy
        detach-role-policy attach-user-policy detach-user-policy attach-group-policy detach-group-policy
        put-role-policy delete-role-policy create-access-key update-access-key delete-access-key tag-role
        untag-role tag-user untag-user""",
    "ssm": "put-parameter delete-parameter delete-parameters add-tags-to-resource remove-tags-from-resource",
    "secretsmanager": """create-secret put-secret-value update-secret delete-secret restore-secret
        tag-resource untag-resource""",
}
OBJECT_VERBS = ("ls", "mb", "rb", "rm", "cp")  # of `aws s3`; what needs a disk is not there


def operations(service: str) -> tuple[str, ...]:
    """Return what may be typed after `aws SERVICE`, reads first."""
    return (*READS[service].split(), *WRITES[service].split())


def is_read(service: str, operation: str) -> bool:
    return operation in READS[service].split()
