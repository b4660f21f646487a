"""The store on S3 and on servers that speak it, through boto3: one object per file, no renames, and no key that is ever written twice."""
