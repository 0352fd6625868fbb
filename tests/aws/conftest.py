from servers.moto import aws, faulty, moto

__all__ = ["aws", "faulty", "moto"]
