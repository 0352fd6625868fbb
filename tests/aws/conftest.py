from servers.localstack import localstack
from servers.moto import aws, faulty, moto

__all__ = ["aws", "faulty", "localstack", "moto"]
