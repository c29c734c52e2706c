"""SQLAlchemy: schema, ORM, pools with pre-ping, savepoints, server-side cursors, over three drivers."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from .transcript import address, attempt, say


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "author"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    books: Mapped[list[Book]] = relationship(back_populates="author")


class Book(Base):
    __tablename__ = "book"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    price: Mapped[float | None]
    tags: Mapped[list[str] | None] = mapped_column(sa.ARRAY(sa.Text))
    author_id: Mapped[int] = mapped_column(sa.ForeignKey("author.id"))
    author: Mapped[Author] = relationship(back_populates="books")


def work(driver: str) -> None:
    engine = sa.create_engine(f"postgresql+{driver}:{address().url}", pool_size=2, pool_pre_ping=True)
    say("driver", driver)
    Base.metadata.create_all(engine)
    say("tables", sorted(sa.inspect(engine).get_table_names(schema="public")))
    say("columns", [(c["name"], str(c["type"])) for c in sa.inspect(engine).get_columns("book")])
    with Session(engine) as session:
        session.add_all(
            Author(name=f"a{n}", books=[Book(title=f"t{n}{k}", price=k / 2, tags=["x", str(k)]) for k in range(3)])
            for n in range(4)
        )
        session.commit()
        say(
            "join",
            session.execute(
                sa.select(Author.name, sa.func.count()).join(Author.books).group_by(Author.name).order_by(Author.name)
            ).all(),
        )
        try:
            with session.begin_nested():
                session.add(Author(name="a0"))
        except sa.exc.IntegrityError:
            say("savepoint", "unique violation")
        session.add(Author(name="later"))
        session.commit()
        author = session.scalars(sa.select(Author).where(Author.name == "a1").with_for_update()).one()
        author.name = "renamed"
        session.flush()
        session.rollback()
        say("rolled back", session.scalars(sa.select(Author.name).order_by(Author.name)).all())
        session.execute(sa.delete(Book).where(Book.price == 1.0))
        session.commit()
        say("left", session.scalar(sa.select(sa.func.count()).select_from(Book)))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        say("autocommit", connection.execute(sa.text("SELECT 1")).scalar())
        attempt("error", lambda: connection.execute(sa.text("SELECT 1/0")).scalar())
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        say("isolation", connection.execute(sa.text("SHOW transaction_isolation")).scalar())
    with engine.connect() as connection:
        streamed = connection.execution_options(stream_results=True, max_row_buffer=5).execute(
            sa.text("SELECT id FROM item ORDER BY id")
        )
        say("streamed", [row[0] for row in streamed])
        say(
            "cast",
            connection.execute(sa.select(sa.cast("2024-02-29", sa.Date), sa.literal(1.5, sa.Numeric(5, 2)))).all(),
        )
    Base.metadata.drop_all(engine)
    engine.dispose()


async def work_async() -> None:
    engine = create_async_engine(f"postgresql+asyncpg:{address().url}", pool_size=2)
    say("driver", "asyncpg")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(sa.insert(Author), [{"name": f"n{n}"} for n in range(5)])
    async with engine.connect() as connection:
        say("names", (await connection.execute(sa.select(Author.name).order_by(Author.id))).scalars().all())
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
    await engine.dispose()


for each in ("psycopg", "pg8000", "psycopg2"):
    work(each)
asyncio.run(work_async())
